//! `/health` speaks of forward progress: a unit is well when its seats take turns and, where there is work, steps are
//! made. Otherwise it says which seat, since when, and what it waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use millstream_runtime::{LaneState, SeatState};
use serde_json::{Value, json};

use super::Http;

/// One unit, judged.
#[derive(Debug, PartialEq)]
struct UnitHealth {
    name: String,
    restarts: u64,
    last_cause: Option<String>,
    /// Why it makes no progress.
    reason: Option<String>,
}

/// `GET /health`: 200 when every unit makes progress, 503 when one does not or the server drains.
pub(super) async fn show(State(http): State<Http>) -> Response {
    let running = http.mill.running();
    let mut units = judge(&running.seats(), &running.lanes(), http.busy_max);
    add_still_groups(&http, &mut units);
    let draining = http.mill.desk().is_closed();
    let well = units.iter().all(|unit| unit.reason.is_none());
    let status = match (well, draining) {
        (false, _) => "failing",
        (true, true) => "draining",
        (true, false) => "ok",
    };
    let code = if status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "status": status,
        "model": http.facts.model,
        "plan": http.facts.plan,
        "requests": http.mill.desk().streams(),
        "units": units.iter().map(unit_body).collect::<Vec<_>>(),
    });
    (code, Json(body)).into_response()
}

fn unit_body(unit: &UnitHealth) -> Value {
    json!({
        "name": unit.name,
        "ok": unit.reason.is_none(),
        "reason": unit.reason,
        "restarts": unit.restarts,
        "last_cause": unit.last_cause,
    })
}

fn judge(seats: &[SeatState], lanes: &[LaneState], busy_max: Duration) -> Vec<UnitHealth> {
    let mut units: BTreeMap<&str, UnitHealth> = BTreeMap::new();
    for seat in seats {
        let unit = units.entry(&seat.unit).or_insert_with(|| UnitHealth {
            name: seat.unit.clone(),
            restarts: seat.restarts,
            last_cause: seat.last_cause.clone(),
            reason: None,
        });
        unit.reason = unit.reason.take().or_else(|| trouble(seat, lanes, busy_max));
    }
    units.into_values().collect()
}

/// Why a seat makes no progress.
fn trouble(seat: &SeatState, lanes: &[LaneState], busy_max: Duration) -> Option<String> {
    let (name, idle) = (&seat.name, seat.since_turn.as_secs());
    if seat.dead {
        let cause = seat.last_cause.as_deref().unwrap_or("stopped");
        return Some(format!("{name} is dead: {cause}"));
    }
    if let Some(busy) = seat.busy_since.filter(|busy| *busy > busy_max) {
        return Some(format!("{name} has been in one turn for {} s", busy.as_secs()));
    }
    if seat.since_turn <= busy_max {
        return None;
    }
    if seat.waiting {
        let full = lanes.iter().find(|lane| lane.from.as_ref() == Some(name) && lane.depth >= lane.capacity);
        let lane = full.map_or("a lane", |lane| lane.name.as_str());
        return Some(format!("{name} has waited for room on {lane} for {idle} s"));
    }
    (seat.queued > 0).then(|| format!("{name} has {} messages and took no turn for {idle} s", seat.queued))
}

/// A group whose seats take turns but whose sequences do not advance is not well either.
fn add_still_groups(http: &Http, units: &mut [UnitHealth]) {
    for (place, group) in http.mill.gauges().iter().enumerate() {
        let still = http.mill.progress().still(place);
        let Some(unit) = units.iter_mut().find(|unit| unit.name == group.name) else { continue };
        if still > http.busy_max && unit.reason.is_none() {
            unit.reason = Some(format!(
                "no step for {} s with {} running and {} waiting; {} of {} blocks are used",
                still.as_secs(),
                group.running.get(),
                group.waiting.get(),
                group.blocks_used.get(),
                group.blocks_total.get(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(name: &str) -> SeatState {
        SeatState {
            name: name.to_owned(),
            unit: "decode".to_owned(),
            turns: 1,
            queued: 0,
            restarts: 0,
            busy_since: None,
            since_turn: Duration::ZERO,
            waiting: false,
            dead: false,
            last_cause: None,
        }
    }

    fn reason(seat: SeatState) -> Option<String> {
        judge(&[seat], &[], Duration::from_secs(10)).remove(0).reason
    }

    #[test]
    fn an_idle_seat_is_well_however_long() {
        assert_eq!(reason(SeatState { since_turn: Duration::from_secs(999), ..seat("a") }), None);
    }

    #[test]
    fn trouble_is_said_with_its_cause() {
        let long = Duration::from_secs(11);
        let dead = SeatState { dead: true, last_cause: Some("boom".into()), ..seat("a") };
        assert_eq!(reason(dead).unwrap(), "a is dead: boom");
        let busy = SeatState { busy_since: Some(long), ..seat("a") };
        assert_eq!(reason(busy).unwrap(), "a has been in one turn for 11 s");
        let queued = SeatState { queued: 3, since_turn: long, ..seat("a") };
        assert_eq!(reason(queued).unwrap(), "a has 3 messages and took no turn for 11 s");
        let waiting = SeatState { waiting: true, since_turn: long, ..seat("a") };
        assert_eq!(reason(waiting).unwrap(), "a has waited for room on a lane for 11 s");
    }
}
