//! `/metrics` in the Prometheus text format: the meters of the desk, and the numbers of seats, lanes and groups as they
//! are at this moment.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use millstream_actors::gauges::{EncodeGauges, Gauge, GroupGauges, Times};
use prometheus::core::Collector;
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{CounterVec, GaugeVec, Opts, TextEncoder};

use super::Http;
use super::fault::Fault;

/// `GET /metrics`.
pub(super) async fn show(State(http): State<Http>) -> Result<Response, Fault> {
    let text = families(&http).and_then(|families| TextEncoder::new().encode_to_string(&families));
    let text = text.map_err(|error| Fault::server(format!("the metrics cannot be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

fn families(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let mut all = http.mill.desk().meters().gather();
    all.extend(streams(http)?);
    all.extend(lanes(http)?);
    all.extend(seats(http)?);
    all.extend(groups(http)?);
    all.extend(times(http)?);
    all.extend(reuse(http)?);
    all.extend(images(http)?);
    all.extend(store(http)?);
    Ok(all)
}

/// Rows of one family: the label's value and the number. Of no rows there is no family: it must not be empty.
type Rows<'a> = Vec<(&'a str, f64)>;

fn gauge(
    name: &str,
    help: &str,
    label: &str,
    rows: &Rows<'_>,
) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let family = GaugeVec::new(Opts::new(name, help), &[label])?;
    for (value, number) in rows {
        family.with_label_values(&[*value]).set(*number);
    }
    Ok(if rows.is_empty() { Vec::new() } else { family.collect() })
}

fn counter(
    name: &str,
    help: &str,
    label: &str,
    rows: &Rows<'_>,
) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let family = CounterVec::new(Opts::new(name, help), &[label])?;
    for (value, number) in rows {
        family.with_label_values(&[*value]).inc_by(*number);
    }
    Ok(if rows.is_empty() { Vec::new() } else { family.collect() })
}

fn streams(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let open = prometheus::Gauge::new("millstream_requests_open", "Requests that have not ended.")?;
    open.set(http.mill.desk().streams() as f64);
    Ok(open.collect())
}

fn lanes(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let lanes = http.mill.running().lanes();
    let rows = |number: fn(&millstream_runtime::LaneState) -> f64| -> Rows<'_> {
        lanes.iter().map(|lane| (lane.name.as_str(), number(lane))).collect()
    };
    let label = "lane";
    Ok([
        gauge("millstream_lane_depth", "Messages in a lane.", label, &rows(|lane| lane.depth as f64))?,
        gauge("millstream_lane_depth_max", "The most seen.", label, &rows(|lane| lane.depth_max as f64))?,
        gauge(
            "millstream_lane_capacity",
            "Messages a lane holds.",
            label,
            &rows(|lane| lane.capacity as f64),
        )?,
        counter(
            "millstream_lane_sent_total",
            "Messages that entered.",
            label,
            &rows(|lane| lane.sent as f64),
        )?,
        counter(
            "millstream_lane_refused_total",
            "Offers that came back.",
            label,
            &rows(|lane| lane.refused as f64),
        )?,
        counter(
            "millstream_lane_dropped_total",
            "Thrown away by restarts.",
            label,
            &rows(|lane| lane.dropped as f64),
        )?,
        counter(
            "millstream_lane_waited_total",
            "Times its sender waited.",
            label,
            &rows(|lane| lane.waited as f64),
        )?,
    ]
    .concat())
}

fn seats(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let seats = http.mill.running().seats();
    let rows = |number: fn(&millstream_runtime::SeatState) -> f64| -> Rows<'_> {
        seats.iter().map(|seat| (seat.name.as_str(), number(seat))).collect()
    };
    let busy = |seat: &millstream_runtime::SeatState| seat.busy_since.map_or(0.0, |busy| busy.as_secs_f64());
    let label = "seat";
    Ok([
        counter("millstream_seat_turns_total", "Turns taken.", label, &rows(|seat| seat.turns as f64))?,
        counter(
            "millstream_seat_restarts_total",
            "Times built again.",
            label,
            &rows(|seat| seat.restarts as f64),
        )?,
        gauge(
            "millstream_seat_queued",
            "Messages that wait for it.",
            label,
            &rows(|seat| seat.queued as f64),
        )?,
        gauge("millstream_seat_busy_seconds", "Time in the present turn.", label, &rows(busy))?,
    ]
    .concat())
}

/// One number of each group.
fn of_groups(http: &Http, number: fn(&GroupGauges) -> u64) -> Rows<'_> {
    http.mill.gauges().iter().map(|group| (group.name.as_str(), number(group) as f64)).collect()
}

fn groups(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let rows = |number: fn(&GroupGauges) -> u64| of_groups(http, number);
    let label = "group";
    Ok([
        gauge(
            "millstream_group_blocks_used",
            "KV blocks in use.",
            label,
            &rows(|group| group.blocks_used.get()),
        )?,
        gauge(
            "millstream_group_blocks",
            "KV blocks in all.",
            label,
            &rows(|group| group.blocks_total.get()),
        )?,
        gauge("millstream_group_leases", "Leases open.", label, &rows(|group| group.leases.get()))?,
        gauge("millstream_group_running", "Sequences in steps.", label, &rows(|group| group.running.get()))?,
        gauge("millstream_group_waiting", "Sequences that wait.", label, &rows(|group| group.waiting.get()))?,
        counter("millstream_group_steps_total", "Steps made.", label, &rows(|group| group.steps.get()))?,
        counter(
            "millstream_group_tokens_total",
            "Tokens computed.",
            label,
            &rows(|group| group.tokens.get()),
        )?,
        counter(
            "millstream_group_preemptions_total",
            "Sequences put back.",
            label,
            &rows(|group| group.preemptions.get()),
        )?,
    ]
    .concat())
}

/// What steps take, and how well that is predicted.
fn times(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let error = |group: &Arc<GroupGauges>| (group.name.clone(), group.step_error.get() as f64 / 1e6);
    let errors: Vec<(String, f64)> = http.mill.gauges().iter().map(error).collect();
    let rows: Rows<'_> = errors.iter().map(|(name, error)| (name.as_str(), *error)).collect();
    let help = "The middle of the relative errors with which recent steps were predicted.";
    let mut all = gauge("millstream_step_prediction_error", help, "group", &rows)?;
    let help = "What steps with rows took, as their group measures it.";
    all.push(histograms(http, "millstream_step_seconds", help, |group| &group.step_times));
    let help = "Between the end of a step and the beginning of the next one, while the group had work to do.";
    all.push(histograms(http, "millstream_step_gap_seconds", help, |group| &group.step_gaps));
    Ok(all)
}

/// What something took in each group.
fn histograms(http: &Http, name: &str, help: &str, times: fn(&GroupGauges) -> &Times) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(MetricType::HISTOGRAM);
    family.set_metric(http.mill.gauges().iter().map(|group| histogram(&group.name, times(group))).collect());
    family
}

fn histogram(group: &str, times: &Times) -> Metric {
    let (within, count, seconds) = times.get();
    let buckets = Times::BOUNDS.iter().zip(within).map(|(&bound, within)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(within);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(count);
    histogram.set_sample_sum(seconds);
    let mut label = LabelPair::default();
    label.set_name("group".to_owned());
    label.set_value(group.to_owned());
    let mut metric = Metric::from_label(vec![label]);
    metric.set_histogram(histogram);
    metric
}

/// What the groups do not compute twice.
fn reuse(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let rows = |number: fn(&GroupGauges) -> u64| of_groups(http, number);
    let label = "group";
    Ok([
        gauge(
            "millstream_group_blocks_cached",
            "KV blocks that nobody uses and that may be used again.",
            label,
            &rows(|group| group.blocks_cached.get()),
        )?,
        counter(
            "millstream_prefix_sought_tokens_total",
            "Tokens of sequences that began.",
            label,
            &rows(|group| group.tokens_sought.get()),
        )?,
        counter(
            "millstream_prefix_found_tokens_total",
            "Those of them that were found in KV memory.",
            label,
            &rows(|group| group.tokens_found.get()),
        )?,
        counter(
            "millstream_prefix_replayed_tokens_total",
            "Tokens that were found and computed once more, for the windows of a state.",
            label,
            &rows(|group| group.tokens_replayed.get()),
        )?,
        gauge(
            "millstream_group_state_slots_used",
            "State slots of sequences and leases, where the model keeps a state.",
            label,
            &rows(|group| group.slots_used.get()),
        )?,
        counter(
            "millstream_prefix_evicted_blocks_total",
            "Cached KV blocks whose memory was wanted.",
            label,
            &rows(|group| group.evictions.get()),
        )?,
    ]
    .concat())
}

/// What was looked at; nothing for a model without eyes.
fn images(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let rows = |number: fn(&EncodeGauges) -> f64| -> Rows<'_> {
        http.mill.encoders().iter().map(|encode| (encode.name.as_str(), number(encode))).collect()
    };
    let label = "actor";
    let seconds = |encode: &EncodeGauges| encode.nanoseconds.get() as f64 / 1e9;
    Ok([
        counter(
            "millstream_images_encoded_total",
            "Images looked at.",
            label,
            &rows(|e| e.images.get() as f64),
        )?,
        counter(
            "millstream_images_found_total",
            "Images that were known.",
            label,
            &rows(|e| e.hits.get() as f64),
        )?,
        counter("millstream_encode_seconds_total", "Time that looking took.", label, &rows(seconds))?,
        gauge(
            "millstream_encode_cached_bytes",
            "Bytes of embeddings kept.",
            label,
            &rows(|e| e.cached_bytes.get() as f64),
        )?,
        gauge("millstream_encode_waiting", "Requests that wait.", label, &rows(|e| e.waiting.get() as f64))?,
    ]
    .concat())
}

/// What the prefix store keeps and brings; nothing where the plan has none.
fn store(http: &Http) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let Some(cache) = http.mill.cache() else { return Ok(Vec::new()) };
    let row = |number: &Gauge| -> Rows<'_> { vec![("cache", number.get() as f64)] };
    let held = [
        ("millstream_store_host_bytes", "Bytes of blocks in host memory.", &cache.host_bytes),
        ("millstream_store_snapshots", "Snapshots in host memory.", &cache.snapshots),
        ("millstream_store_snapshot_bytes", "Bytes of snapshots in host memory.", &cache.snapshot_bytes),
        ("millstream_store_lasting_bytes", "Bytes of the tier that lasts.", &cache.lasting_bytes),
        ("millstream_store_lasting_blocks", "Blocks of the tier that lasts.", &cache.lasting_blocks),
        ("millstream_store_unwritten_bytes", "Bytes that wait to be written.", &cache.unwritten_bytes),
        ("millstream_store_fetches", "Sequences that blocks are brought up for.", &cache.flights),
    ];
    let counted = [
        ("millstream_store_sought_blocks_total", "Blocks that groups asked for.", &cache.sought),
        ("millstream_store_hit_blocks_total", "Blocks that were brought to them.", &cache.hits),
        (
            "millstream_store_snapshots_brought_total",
            "Snapshots that were brought to groups.",
            &cache.snapshots_brought,
        ),
        ("millstream_store_stored_blocks_total", "Blocks that came from groups and were new.", &cache.stored),
        (
            "millstream_store_read_bytes_total",
            "Bytes of blocks read from the tier that lasts.",
            &cache.read_bytes,
        ),
        ("millstream_store_written_bytes_total", "Bytes of blocks written to it.", &cache.written_bytes),
        ("millstream_store_dropped_blocks_total", "Blocks that were not written.", &cache.unwritten_blocks),
        (
            "millstream_store_damaged_blocks_total",
            "Blocks that were not what was stored.",
            &cache.damaged_blocks,
        ),
        ("millstream_store_refused_objects_total", "Objects that were no packs.", &cache.refused_objects),
        ("millstream_store_errors_total", "Calls of the tier that lasts that failed.", &cache.errors),
    ];
    let held = held.into_iter().map(|(name, help, number)| gauge(name, help, "actor", &row(number)));
    let counted = counted.into_iter().map(|(name, help, number)| counter(name, help, "actor", &row(number)));
    let classes = cache.classes.iter().map(|(class, bytes)| (class.as_str(), bytes.get() as f64)).collect();
    let help = "Bytes of blocks of the tier that lasts, those left out that are given up.";
    let classes = gauge("millstream_store_class_bytes", help, "class", &classes);
    Ok(held.chain(counted).chain([classes]).collect::<Result<Vec<_>, _>>()?.concat())
}
