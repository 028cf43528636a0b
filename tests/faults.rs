//! What load, impatient clients and deaths do to those who stay: nothing.

mod house;

use std::time::Duration;

use futures::future::join_all;
use house::{House, JOINED, SPLIT, long, say, source, text_of, until};
use millstream::desk::Cut;
use millstream::mill::Mill;
use millstream_actors::request::{ChatMessage, ChatRole, Prompt, Reply, Sampling, Submit};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_house_says_when_to_come_back() {
    let house = House::open("requests_max = 2", SPLIT).await;
    let first = house.stream(&long(1, 3000)).await;
    let second = house.stream(&long(2, 3000)).await;
    let response = house.post(&say("me too", json!({}))).await;
    assert_eq!(response.status(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..60).contains(&wait));
    drop((first, second));
    house.at_rest().await;
    assert!(!house.text(&say("now?", json!({"max_tokens": 4}))).await.is_empty());
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_take_their_work_with_them() {
    for actors in [SPLIT, JOINED] {
        let house = House::open("", actors).await;
        let asks: Vec<Value> = (0..16).map(|seed| long(seed, 3000)).collect();
        let mut open = join_all(asks.iter().map(|ask| house.stream(ask))).await;
        join_all(open.iter_mut().map(|events| events.read(2))).await;
        drop(open);
        house.at_rest().await;
        let cancelled = house.server.mill().desk().meters().count("cancelled");
        assert!(cancelled >= 1, "no request was cancelled");
        house.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_a_whole_answer_is_noticed_too() {
    let house = House::open("", SPLIT).await;
    let ask = long(5, 4000);
    assert!(tokio::time::timeout(Duration::from_millis(30), house.post(&ask)).await.is_err());
    house.at_rest().await;
    assert_eq!(house.server.mill().desk().meters().count("cancelled"), 1);
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_streams_at_once() {
    let burst = "[[wires]]\nfrom = \"router.admit\"\nto = \"prefill.admit\"\ncapacity = 512\n";
    let house = House::open("", &format!("{SPLIT}{burst}")).await;
    let alone = text_of(&house.stream(&long(77, 16)).await.all().await);
    let asks: Vec<Value> =
        (0..500).map(|number| long(if number % 50 == 0 { 77 } else { number }, 16)).collect();
    let streams = join_all(asks.iter().map(|ask| async { house.stream(ask).await.all().await })).await;
    // A handover that meets a full lane is parked and offered again.
    for lane in house.server.mill().running().lanes().into_iter().filter(|l| !l.name.contains("handover")) {
        assert_eq!(lane.refused, 0, "{} had no room", lane.name);
    }
    for (number, events) in streams.iter().enumerate() {
        let last = events.last().unwrap();
        assert!(last["choices"][0]["finish_reason"].is_string(), "stream {number} ended with {last}");
        if number % 50 == 0 {
            assert_eq!(text_of(events), alone, "stream {number}");
        }
    }
    house.at_rest().await;
    house.server.stop().await;
}

/// Kills a unit while 20 streams are open; each must say what it says undisturbed.
async fn killed(actors: &str, unit: &str) {
    let house = House::open("", actors).await;
    let asks: Vec<Value> = (100..120).map(|seed| long(seed, 250)).collect();
    let calm = join_all(asks.iter().map(|ask| async { text_of(&house.stream(ask).await.all().await) })).await;
    let mut open = join_all(asks.iter().map(|ask| house.stream(ask))).await;
    join_all(open.iter_mut().map(|events| events.read(3))).await;
    let alive = house.server.mill().desk().streams();
    assert!(house.server.mill().running().kill(unit), "there is no {unit}");
    assert!(alive >= 10, "only {alive} streams were open at the kill");
    let disturbed = join_all(open.into_iter().map(|events| async { text_of(&events.all().await) })).await;
    for (number, (calm, disturbed)) in calm.iter().zip(&disturbed).enumerate() {
        assert_eq!(calm, disturbed, "stream {number}");
    }
    let restarts = house.server.mill().running().seats().iter().map(|seat| seat.restarts).max();
    assert_eq!(restarts, Some(1));
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_of_decode_changes_no_text() {
    killed(SPLIT, "decode").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_of_prefill_changes_no_text() {
    killed(SPLIT, "prefill").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_of_the_joined_group_changes_no_text() {
    killed(JOINED, "decode").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_of_the_gateway_ends_every_stream() {
    let house = House::open("", SPLIT).await;
    let mut open = Vec::new();
    for seed in 0..8 {
        open.push(house.stream(&long(seed, 4000)).await);
    }
    assert!(house.server.mill().running().kill("gateway"));
    let ended =
        tokio::time::timeout(Duration::from_secs(10), join_all(open.into_iter().map(house::Events::all)));
    for events in ended.await.expect("a stream hangs") {
        let last = events.last().unwrap();
        assert!(last["error"].is_object() || last["choices"][0]["finish_reason"].is_string(), "{last}");
    }
    assert!(!house.text(&say("again", json!({"max_tokens": 4}))).await.is_empty());
    house.at_rest().await;
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unit_that_is_dead_for_good_is_said_by_health() {
    let house = House::open("", &format!("{SPLIT}[limits]\nrestarts = 0\n")).await;
    assert!(house.server.mill().running().kill("decode"));
    let running = house.server.mill().running().clone();
    until("decode is dead", move || running.seats().iter().any(|seat| seat.dead)).await;
    let health = house.client.get(house.url("/health")).send().await.unwrap();
    assert_eq!(health.status(), 503);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["status"], "failing");
    let decode = health["units"].as_array().unwrap().iter().find(|unit| unit["name"] == "decode").unwrap();
    assert!(decode["reason"].as_str().unwrap().contains("dead"), "{health}");
    let exit = tokio::time::timeout(Duration::from_secs(5), house.server.exited()).await.unwrap();
    assert!(matches!(exit, millstream_runtime::Exit::Failed { .. }), "{exit:?}");
    house.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_ends_what_runs_and_refuses_what_comes() {
    let house = House::open("", SPLIT).await;
    let running = house.stream(&long(3, 400)).await;
    let (url, client) = (house.url("/v1/chat/completions"), house.client.clone());
    let mill = house.server.mill().clone();
    let drained = tokio::spawn(house.server.drain(Duration::from_secs(30)));
    until("the desk is closed", move || mill.desk().is_closed()).await;
    // The listener may be gone already; what is answered must be a refusal.
    if let Ok(response) = client.post(&url).json(&say("me?", json!({}))).send().await {
        assert_eq!(response.status(), 503);
    }
    let events = running.all().await;
    assert!(events.last().unwrap()["choices"][0]["finish_reason"].is_string());
    assert!(drained.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_too_slowly_is_cut_off() {
    let source = source("", SPLIT);
    let mill = Mill::start(&source.plan, &source.load().unwrap(), 4).await.unwrap();
    let prompt = Prompt::Chat(vec![ChatMessage::new(ChatRole::User, "go on")]);
    let submit = Submit { tokens_max: Some(2000), ignore_end: true, ..Submit::new(prompt, Sampling::GREEDY) };
    let mut slow = mill.desk().ask(submit.clone()).unwrap();
    let desk = mill.desk().clone();
    until("the stream is given up", move || desk.streams() == 0).await;
    let mut replies = 0;
    let cut = loop {
        match slow.next().await {
            Ok(Reply::End { outcome, .. }) => panic!("ended as {outcome:?}"),
            Ok(_) => replies += 1,
            Err(cut) => break cut,
        }
    };
    assert_eq!((cut, replies), (Cut::Slow, 4));
    mill.stop().await;
}
