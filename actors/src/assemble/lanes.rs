//! Every seat and every lane of a plan, before any seat has its actor. Lanes are declared here and nowhere else; their
//! capacities are those of the plan's wires.

use std::sync::Arc;

use millstream_runtime::{GraphBuilder, HoldOut, OfferOut, ReplyOut, Seat};
use millstream_topology::{GroupSettings, Plan, Port, Role};

use super::wiring::Wiring;
use super::{Driver, EncodePlan, GroupPlan, cache_name, disk_unit};
use crate::balance::Capacity;
use crate::decode::PrefillLane;
use crate::encode::EncodeLanes;
use crate::error::Error;
use crate::group::{GroupLanes, LoadLane, Steps, StoreLanes};
use crate::message::{
    Admit, Blocks, CacheAnswer, CacheMessage, Cancel, DecodeMessage, DetokenizerMessage, EncodeMessage,
    Failure, GatewayMessage, Load, PrefillMessage, RouterMessage, Step, StepDone, Text, Tokenize,
};
use crate::prefill::DecodeLanes;
use crate::rank::predicted::Prediction;
use crate::request::{Request, RequestId};
use crate::router::{EncodeDoor, GroupDoor};
use crate::store::{Payload, Told, Wish};

/// Steps that may wait at a rank.
const STEPS: usize = 2;
/// Wishes of a tier that are carried out at the same time.
pub(super) const WISHES: usize = 16;
/// Questions of a group to the cache that are open at once.
pub(super) const ASKS: usize = 64;
/// Threads that read and write for the cache: a few keep a disk busy.
const DISKS: usize = 4;
/// Steps whose new blocks wait at the cache.
const KEEPS: usize = 16;
/// Used where the plan has no such wire, which `check` does not let happen.
const CAPACITY: usize = 256;

/// The scheduler seat of a group.
pub(super) enum Scheduling {
    /// Computes prompts.
    Prefill(Seat<PrefillMessage>),
    /// Computes answers, and prompts when it is joined.
    Decode(Seat<DecodeMessage>),
}

/// Every seat of the plan.
pub(super) struct Seats {
    pub gateway: Seat<GatewayMessage>,
    pub tokenizer: Seat<Tokenize>,
    pub router: Seat<RouterMessage>,
    pub detokenizer: Seat<DetokenizerMessage>,
    /// One a group, in order.
    pub schedulers: Vec<Scheduling>,
    /// One a group, in order; none where steps are predicted.
    pub ranks: Vec<Option<Seat<Step>>>,
    /// One an encode actor, in order.
    pub encoders: Vec<Seat<EncodeMessage>>,
    /// The prefix store, where the plan has one.
    pub cache: Option<Seat<CacheMessage>>,
    /// What reads and writes for it, where a tier lasts.
    pub disks: Vec<Seat<Wish>>,
}

impl Seats {
    pub(super) fn new(
        wiring: &mut Wiring<'_>,
        groups: &[GroupPlan],
        encoders: &[EncodePlan],
    ) -> Result<Self, Error> {
        let (mut schedulers, mut ranks, mut core) = (Vec::new(), Vec::new(), 0);
        for group in groups {
            let GroupSettings { threads, pinned, .. } = group.settings;
            let cores = if pinned { vec![core] } else { Vec::new() };
            core += threads;
            let name = group.name.as_str();
            let rank = || wiring.graph.compute_seat::<Step>(&format!("{name}.rank"), name, cores);
            ranks.push((!wiring.driver.predicts()).then(rank));
            schedulers.push(match group.prefill {
                true => Scheduling::Prefill(wiring.graph.seat(name, name)),
                false => Scheduling::Decode(wiring.graph.seat(name, name)),
            });
        }
        let eyes = |plan: &EncodePlan| wiring.graph.compute_seat(&plan.name, &plan.name, Vec::new());
        let encoders = encoders.iter().map(eyes).collect();
        let name = cache_name(wiring.plan);
        let disks = if wiring.resources.store.is_some() { DISKS } else { 0 };
        let (cache, disks) = name.map_or((None, Vec::new()), |name| {
            let unit = disk_unit(&name);
            let disk = |n| wiring.graph.compute_seat(&format!("{unit}.{n}"), &unit, Vec::new());
            let disks = (0..disks).map(disk).collect();
            (Some(wiring.graph.seat(&name, &name)), disks)
        });
        let (gateway, tokenizer) = (wiring.control(&Role::Gateway)?, wiring.control(&Role::Tokenizer)?);
        let (router, detokenizer) = (wiring.control(&Role::Router)?, wiring.control(&Role::Detokenizer)?);
        Ok(Self { gateway, tokenizer, router, detokenizer, schedulers, ranks, encoders, cache, disks })
    }

    fn decodes(&self) -> impl Iterator<Item = &Seat<DecodeMessage>> {
        self.schedulers.iter().filter_map(|seat| match seat {
            Scheduling::Decode(seat) => Some(seat),
            Scheduling::Prefill(_) => None,
        })
    }

    fn prefills(&self) -> impl Iterator<Item = &Seat<PrefillMessage>> {
        self.schedulers.iter().filter_map(|seat| match seat {
            Scheduling::Prefill(seat) => Some(seat),
            Scheduling::Decode(_) => None,
        })
    }
}

/// The sending ends, each for the actor that holds it.
pub(super) struct Lanes {
    pub tokenize: OfferOut<Tokenize>,
    pub prompts: OfferOut<Arc<Request>>,
    pub cancel: OfferOut<Cancel>,
    pub close: OfferOut<RequestId>,
    pub texts: HoldOut<Vec<Text>>,
    pub tokenizer_failures: HoldOut<Failure>,
    pub router_failures: HoldOut<Failure>,
    /// One a group, in order.
    pub groups: Vec<GroupEnds>,
    /// One an encode actor, in order: the router's ends and the actor's own.
    pub encoders: Vec<(EncodeDoor, EncodeLanes)>,
    /// For each prefill group, its lanes to every decode group.
    pub to_decodes: Vec<Vec<DecodeLanes>>,
    /// For each decode group, its lanes to every prefill group.
    pub to_prefills: Vec<Vec<PrefillLane>>,
    /// For each disk, the cache's end and its own.
    pub disks: Vec<(HoldOut<Wish>, ReplyOut<Told>)>,
}

/// What every group has.
pub(super) struct GroupEnds {
    /// Of the router.
    pub door: GroupDoor,
    /// Of the scheduler.
    pub lanes: GroupLanes,
    /// Of the rank, where there is one.
    pub done: Option<ReplyOut<StepDone>>,
    /// Of the cache, where the plan has one.
    pub answers: Option<ReplyOut<CacheAnswer>>,
}

impl Lanes {
    pub(super) fn new(wiring: &mut Wiring<'_>, seats: &Seats, groups: &[GroupPlan]) -> Result<Self, Error> {
        let router = wiring.name(&Role::Router)?;
        let ends =
            (0..groups.len()).map(|number| group_ends(wiring, seats, &groups[number], (number, &router)));
        let groups = ends.collect::<Result<_, _>>()?;
        let (to_decodes, to_prefills) = handovers(wiring, seats);
        let (encoders, disks) = (encoders(wiring, seats), disks(wiring, seats));
        let Seats { gateway, tokenizer, router, detokenizer, .. } = seats;
        let (plan, g) = (wiring.plan, &mut wiring.graph);
        let room = |from, to| capacity(plan, from, to);
        let (submit, arrive) =
            (room("gateway.submit", "tokenizer.requests"), room("tokenizer.prompts", "router.arrive"));
        let (cancel, close) =
            (room("gateway.cancel", "router.cancel"), room("gateway.close", "detokenizer.close"));
        let (failed, lost) =
            (room("tokenizer.failures", "gateway.failures"), room("router.failures", "gateway.failures"));
        let text = room("detokenizer.text", "gateway.text");
        let failure = GatewayMessage::Failure;
        Ok(Self {
            tokenize: g.offer("gateway.submit", gateway, tokenizer, submit, |message| message),
            prompts: g.offer("tokenizer.prompts", tokenizer, router, arrive, RouterMessage::Arrive),
            cancel: g.urgent_offer("gateway.cancel", gateway, router, cancel, RouterMessage::Cancel),
            close: g.urgent_offer("gateway.close", gateway, detokenizer, close, DetokenizerMessage::Close),
            texts: g.hold("detokenizer.text", detokenizer, gateway, text, GatewayMessage::Text),
            tokenizer_failures: g.hold("tokenizer.failures", tokenizer, gateway, failed, failure),
            router_failures: g.hold("router.failures", router, gateway, lost, failure),
            groups,
            encoders,
            to_decodes,
            to_prefills,
            disks,
        })
    }
}

/// The lanes of one group to router, detokenizer and rank.
fn group_ends(
    wiring: &mut Wiring<'_>,
    seats: &Seats,
    group: &GroupPlan,
    at: (usize, &str),
) -> Result<GroupEnds, Error> {
    let (name, (number, router)) = (group.name.as_str(), at);
    let rank = (seats.ranks[number].as_ref(), group);
    match &seats.schedulers[number] {
        Scheduling::Prefill(seat) => {
            let into = Into {
                admit: PrefillMessage::Admit,
                cancel: PrefillMessage::Cancel,
                cache: PrefillMessage::Cache,
                done: PrefillMessage::Done,
            };
            let holds = group.capacity();
            let place = Place { name, number, router, role: "prefill", seat, rank, admits: true, holds };
            ends(wiring, seats, place, into)
        }
        Scheduling::Decode(seat) => {
            let into = Into {
                admit: DecodeMessage::Admit,
                cancel: DecodeMessage::Cancel,
                cache: DecodeMessage::Cache,
                done: DecodeMessage::Done,
            };
            let admits = group.settings.joined;
            let holds = group.capacity();
            let place = Place { name, number, router, role: "decode", seat, rank, admits, holds };
            ends(wiring, seats, place, into)
        }
    }
}

/// Where a group stands in the graph.
struct Place<'a, M> {
    name: &'a str,
    number: usize,
    router: &'a str,
    role: &'a str,
    seat: &'a Seat<M>,
    rank: (Option<&'a Seat<Step>>, &'a GroupPlan),
    admits: bool,
    holds: Capacity,
}

/// How a scheduler seat takes what every group gets.
struct Into<A, C, S, D> {
    admit: A,
    cancel: C,
    cache: S,
    done: D,
}

fn ends<M, A, C, S, D>(
    wiring: &mut Wiring<'_>,
    seats: &Seats,
    place: Place<'_, M>,
    into: Into<A, C, S, D>,
) -> Result<GroupEnds, Error>
where
    M: Send + 'static,
    A: Fn(Admit) -> M + Send + Sync + 'static,
    C: Fn(Cancel) -> M + Send + Sync + 'static,
    S: Fn(CacheAnswer) -> M + Send + Sync + 'static,
    D: Fn(StepDone) -> M + Send + Sync + 'static,
{
    let Place { name, number, router, role, seat, rank, admits, holds } = place;
    let (plan, g) = (wiring.plan, &mut wiring.graph);
    let room = |from: &str, to: &str| capacity(plan, from, to);
    let admit = room("router.admit", &format!("{role}.admit"));
    let cancel = room("router.cancel", &format!("{role}.cancel"));
    let tokens = room(&format!("{role}.tokens"), "detokenizer.tokens");
    let ended = room(&format!("{role}.ended"), "router.ended");
    let door = GroupDoor {
        seat: name.to_owned(),
        admit: admits
            .then(|| g.offer(&format!("router.admit.{name}"), &seats.router, seat, admit, into.admit)),
        cancel: g.urgent_offer(&format!("router.cancel.{name}"), &seats.router, seat, cancel, into.cancel),
        capacity: holds,
    };
    let to_text = DetokenizerMessage::Tokens;
    let (store, answers) =
        seats.cache.as_ref().map(|cache| to_store(g, cache, (name, number, seat), into.cache)).unzip();
    let (steps, done) = match (rank, &wiring.driver) {
        ((Some(rank), _), _) => {
            let steps = g.hold(&format!("{name}.steps"), seat, rank, STEPS, |step| step);
            (Steps::Rank(steps), Some(g.reply(&format!("{name}.done"), rank, seat, STEPS, into.done)))
        }
        ((None, group), driver) => (Steps::Predicted(prediction(driver, group, number)?), None),
    };
    let (loads, told) = (room(&format!("{role}.loads"), "router.loads"), told(seats, name, role));
    let lanes = GroupLanes {
        steps,
        tokens: g.hold(&format!("{name}.tokens"), seat, &seats.detokenizer, tokens, to_text),
        ended: g.hold(&format!("{name}.ended"), seat, &seats.router, ended, RouterMessage::Ended),
        loads: LoadLane {
            out: g.latest(&format!("{name}.loads"), seat, &seats.router, loads, told),
            capacity: holds,
        },
        router: router.to_owned(),
        store,
    };
    Ok(GroupEnds { door, lanes, answers, done })
}

/// How the router takes what a group says of itself: with its number among those of its role.
fn told(seats: &Seats, name: &str, role: &str) -> impl Fn(Load) -> RouterMessage + Send + Sync + use<> {
    let (message, number): (fn(Load, usize) -> RouterMessage, _) = match role {
        "prefill" => (RouterMessage::PrefillLoad, seats.prefills().position(|seat| seat.name() == name)),
        _ => (RouterMessage::DecodeLoad, seats.decodes().position(|seat| seat.name() == name)),
    };
    let number = number.unwrap_or_default();
    move |load| message(load, number)
}

/// What stands for the rank of a group.
fn prediction(driver: &Driver, group: &GroupPlan, number: usize) -> Result<Prediction, Error> {
    let unknown = || Error::Missing(format!("a prediction for {}", group.actor));
    let Driver::Predicted(predicted) = driver else { return Err(unknown()) };
    let (block, slot) = (group.layout.bytes_per_block(), group.layout.bytes_per_slot());
    Ok(Prediction {
        predict: Arc::clone(predicted.predict.get(&group.actor).ok_or_else(unknown)?),
        watch: Arc::clone(&predicted.watch),
        group: number,
        bytes: (block, slot),
        leaps: predicted.leaps,
    })
}

/// The lanes between one group and the cache.
fn to_store<M: Send + 'static>(
    g: &mut GraphBuilder,
    cache: &Seat<CacheMessage>,
    (name, number, seat): (&str, usize, &Seat<M>),
    into: impl Fn(CacheAnswer) -> M + Send + Sync + 'static,
) -> (StoreLanes, ReplyOut<CacheAnswer>) {
    let asks = move |ask| CacheMessage::Ask(ask, number);
    let lanes = StoreLanes {
        seat: cache.name().to_owned(),
        // Each open question may be followed by the news that nobody waits for it, and sequences tell what they found.
        asks: g.offer(&format!("{name}.asks"), seat, cache, 3 * ASKS, asks),
        keeps: g.offer(&format!("{name}.keeps"), seat, cache, KEEPS, CacheMessage::Store),
        snapshots: g.offer(&format!("{name}.snapshots"), seat, cache, KEEPS, CacheMessage::Snapshot),
    };
    // The cache owes answers to what is open, and to what was given up and has not been forgotten yet.
    let answers = g.reply(&format!("cache.answers.{name}"), cache, seat, 4 * ASKS, into);
    g.weigh(&answers, answer_bytes);
    (lanes, answers)
}

/// Bytes of blocks that come with an answer.
fn answer_bytes(answer: &CacheAnswer) -> u64 {
    match answer {
        CacheAnswer::Sought(..) => 0,
        CacheAnswer::Brought(_, data) | CacheAnswer::Fetched(_, _, data) => bytes(data),
    }
}

fn bytes(data: &[Payload]) -> u64 {
    data.iter().map(|data| data.len() as u64).sum()
}

/// The lanes between the router and every encode actor.
fn encoders(wiring: &mut Wiring<'_>, seats: &Seats) -> Vec<(EncodeDoor, EncodeLanes)> {
    let (plan, g) = (wiring.plan, &mut wiring.graph);
    let (images, cancel) =
        (capacity(plan, "router.images", "encode.images"), capacity(plan, "router.cancel", "encode.cancel"));
    let (spans, ended) =
        (capacity(plan, "encode.spans", "router.spans"), capacity(plan, "encode.ended", "router.ended"));
    let router = &seats.router;
    let mut ends = |seat: &Seat<EncodeMessage>| {
        let name = seat.name().to_owned();
        let door = EncodeDoor {
            look: g.offer(&format!("router.images.{name}"), router, seat, images, EncodeMessage::Look),
            cancel: g.urgent_offer(
                &format!("router.cancel.{name}"),
                router,
                seat,
                cancel,
                EncodeMessage::Cancel,
            ),
            seat: name.clone(),
        };
        let lanes = EncodeLanes {
            spans: g.hold(&format!("{name}.spans"), seat, router, spans, RouterMessage::Spans),
            ended: g.hold(&format!("{name}.ended"), seat, router, ended, RouterMessage::Ended),
            router: router.name().to_owned(),
        };
        (door, lanes)
    };
    seats.encoders.iter().map(&mut ends).collect()
}

/// The lanes between the cache and every disk: room for all wishes that a tier has at once.
fn disks(wiring: &mut Wiring<'_>, seats: &Seats) -> Vec<(HoldOut<Wish>, ReplyOut<Told>)> {
    let Some(cache) = &seats.cache else { return Vec::new() };
    let g = &mut wiring.graph;
    let mut ends = |disk: &Seat<Wish>| {
        let name = disk.name().to_owned();
        let wishes = g.hold(&format!("{name}.wishes"), cache, disk, WISHES, |wish| wish);
        (wishes, g.reply(&format!("{name}.told"), disk, cache, WISHES, CacheMessage::Told))
    };
    seats.disks.iter().map(&mut ends).collect()
}

/// The lanes between every prefill and every decode group.
fn handovers(wiring: &mut Wiring<'_>, seats: &Seats) -> (Vec<Vec<DecodeLanes>>, Vec<Vec<PrefillLane>>) {
    let (plan, g) = (wiring.plan, &mut wiring.graph);
    let handover = capacity(plan, "prefill.handover", "decode.handover");
    let pull = capacity(plan, "decode.pull", "prefill.pull");
    let blocks = capacity(plan, "prefill.blocks", "decode.blocks");
    let mut to_prefills: Vec<Vec<PrefillLane>> = seats.decodes().map(|_| Vec::new()).collect();
    let mut to_decodes = Vec::new();
    for prefill in seats.prefills() {
        let mut lanes = Vec::new();
        for (number, decode) in seats.decodes().enumerate() {
            let (from, to) = (prefill.name().to_owned(), decode.name().to_owned());
            let lease = move |message| PrefillMessage::Lease(message, number);
            let leases = g.offer(&format!("{to}.pull.{from}"), decode, prefill, pull, lease);
            let pieces =
                g.reply(&format!("{from}.blocks.{to}"), prefill, decode, blocks, DecodeMessage::Blocks);
            g.weigh(&pieces, |blocks: &Blocks| blocks.data.as_deref().map_or(0, bytes));
            lanes.push(DecodeLanes {
                handover: g.offer(
                    &format!("{from}.handover.{to}"),
                    prefill,
                    decode,
                    handover,
                    DecodeMessage::Handover,
                ),
                blocks: pieces,
                seat: to,
            });
            to_prefills[number].push(PrefillLane { seat: from, leases });
        }
        to_decodes.push(lanes);
    }
    (to_decodes, to_prefills)
}

/// Capacity of the plan's wire between two ports, written `role.port`.
fn capacity(plan: &Plan, from: &str, to: &str) -> usize {
    let end = |port: &Port, text: &str| {
        let role = plan.actor(port.actor.as_str()).map(|actor| actor.role.as_str());
        text.split_once('.').is_some_and(|(r, p)| role == Some(r) && port.port == p)
    };
    let wire = plan.wires.iter().find(|wire| end(&wire.from, from) && end(&wire.to, to));
    wire.map_or(CAPACITY, |wire| wire.capacity)
}
