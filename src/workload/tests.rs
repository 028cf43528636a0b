//! A few lines of each format, and lines that are wrong.

use std::io::{Cursor, Write};

use flate2::write::GzEncoder;

use super::synthetic::{Arrivals, Synthetic};
use super::*;

fn read(text: &'static str) -> Result<Trace, TraceError> {
    Trace::read(Lines::new("t", Cursor::new(text)), TraceOptions::default())
}

/// Seconds, tokens of prompt and answer, and block numbers of a round.
type Row = (f64, u32, u32, Vec<u64>);

fn all(text: &'static str) -> (Format, Option<u32>, Vec<Row>) {
    let trace = read(text).expect("a trace");
    let (format, size) = (trace.format, trace.block_size);
    let mut rounds = Vec::new();
    for talk in trace {
        let talk = talk.expect("a line");
        let row = |round: &Round| {
            (talk.at.as_secs_f64(), round.input, round.output, round.blocks.numbers().collect())
        };
        rounds.extend(talk.rounds.iter().map(row));
    }
    (format, size, rounds)
}

fn wrong(text: &'static str) -> String {
    match read(text) {
        Err(error) => error.to_string(),
        Ok(mut trace) => trace.find_map(Result::err).expect("a line is wrong").to_string(),
    }
}

#[test]
fn mooncake() {
    let text = r#"{"timestamp": 27000, "input_length": 1030, "output_length": 500, "hash_ids": [0, 1, 9]}

{"timestamp": 30500, "input_length": 7, "output_length": 0, "hash_ids": [0]}"#;
    let rounds = vec![(0.0, 1030, 500, vec![0, 1, 9]), (3.5, 7, 1, vec![0])];
    assert_eq!(all(text), (Format::Mooncake, Some(512), rounds));
    assert_eq!(
        wrong("{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}"),
        "t:1: names 3 blocks of 512 tokens for a prompt of 600: 2 at most"
    );
    assert!(
        wrong("{\"timestamp\": 1, \"input_length\": 6, \"output_length\": 5}\n{\"timestamp\"")
            .starts_with("t:2: EOF")
    );
    let long = "{\"timestamp\": 1, \"input_length\": 99999999999, \"output_length\": 5}";
    assert!(wrong(long).starts_with("t:1: the prompt is 99999999999"));
    assert!(
        wrong("{\"timestamp\": 1e300, \"input_length\": 9, \"output_length\": 5}")
            .ends_with("that is no time")
    );
    assert!(wrong("{\"input_length\": 9, \"output_length\": 5}").contains("missing field `timestamp`"));
}

#[test]
fn bailian() {
    let text = r#"{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090]}
{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.114, "input_length": 40, "output_length": 2, "type": "text", "turn": 2, "hash_ids": [1089, 7, 8]}"#;
    let rounds = vec![(0.0, 521, 132, vec![1089, 1090]), (1.0, 40, 2, vec![1089, 7, 8])];
    assert_eq!(all(text), (Format::Bailian, Some(16), rounds));
}

#[test]
fn tables() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-12-31 23:59:59.5000000,4808,10\r\n2024-01-01 00:00:01.0,5,0\r\n2024-03-01 00:00:00,3180,8\r\n";
    // January and a leap February lie between them.
    let rounds = vec![(0.0, 4808, 10, vec![]), (60.0 * 86_400.0 + 0.5, 3180, 8, vec![])];
    assert_eq!(all(azure), (Format::Azure, None, rounds));
    let burst = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,1,2.1,ChatGPT,472,18,490,Conversation log\n45.5,2,1,GPT-4,1087,230,1317,API log";
    let rounds = vec![(0.0, 472, 18, vec![]), (40.5, 1087, 230, vec![])];
    assert_eq!(all(burst), (Format::BurstGpt, None, rounds));
    assert_eq!(
        wrong("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,6"),
        "t:2: \"noon\" is neither seconds nor a time such as 2023-11-16 18:17:03.97"
    );
    assert_eq!(wrong("TIMESTAMP,ContextTokens,GeneratedTokens\n1,x,6"), "t:2: \"x\" is no number of tokens");
    assert_eq!(
        wrong("TIMESTAMP,ContextTokens,GeneratedTokens\n1"),
        "t:2: has 1 columns, and the heading more"
    );
    assert_eq!(
        wrong("When,ContextTokens,GeneratedTokens"),
        "t:1: the heading has no column TIMESTAMP or Timestamp"
    );
}

const AGENTS: &str = r#"{"id":"a","block_size":64,"hash_id_scope":"local","requests":[{"t":0.0,"type":"n","in":130,"out":9,"think_time":5.0,"hash_runs":[[1,2]]},{"t":70.0,"type":"subagent","requests":[{"t":0.0,"in":64,"out":3,"think_time":0,"hash_runs":[[50,1]]},{"t":4.0,"in":128,"out":3,"think_time":1.5,"hash_runs":[[50,2]]}]},{"t":19.0,"in":200,"out":7,"think_time":12.0,"hash_runs":[[1,3]]}]}
{"id":"b","block_size":64,"requests":[{"t":0.0,"in":64,"out":2,"hash_ids":[1]}]}"#;

#[test]
fn agents_ask_again_and_what_they_send_out_asks_beside_them() {
    let talks: Vec<Talk> = read(AGENTS).expect("a trace").map(|talk| talk.expect("a line")).collect();
    let row =
        |talk: &Talk| (talk.at.as_secs(), talk.rounds.iter().map(|round| round.after.as_millis()).collect());
    let rows: Vec<(u64, Vec<u128>)> = talks.iter().map(row).collect();
    assert_eq!(rows, [(0, vec![0, 12_000]), (60, vec![0]), (70, vec![0, 1_500])]);
    let names = |talk: usize, round: usize, count| talks[talk].rounds[round].blocks.names(count, 0);
    assert_eq!(names(0, 0, 2), names(0, 1, 3)[..2].into(), "the second begins like the first");
    assert_ne!(names(0, 0, 1), names(1, 0, 1), "numbers of another talk mean something else");
    let again = r#"{"block_size":64,"requests":[{"t":0,"in":64,"out":2,"hash_runs":[[1,9]]}]}"#;
    assert_eq!(wrong(again), "t:1: names 9 blocks of 64 tokens for a prompt of 64");
    let sizes = "{\"block_size\":64,\"requests\":[{\"t\":0,\"in\":1,\"out\":2}]}\n{\"block_size\":32,\"requests\":[]}";
    assert_eq!(wrong(sizes), "t:2: its block_size is 32, and that of the lines above 64");
}

#[test]
fn dynamo() {
    let text = r#"{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1777312801000,"request":{"request_id":"a","request_received_ms":1777312800500,"output_tokens":16,"replay":{"trace_block_size":64,"input_length":128,"input_sequence_hashes":[14879255164371896291,274632075616497421]}}}
{"schema":"dynamo.request.trace.v1","event_type":"tool_end","event_time_unix_ms":1777312801500,"tool":{"tool_call_id":"c"}}
{"timestamp":1,"event":{"schema":"dynamo.request.trace.v1","event_type":"request_end","request":{"request_id":"b","request_received_ms":1777312800000,"output_tokens":1,"replay":{"trace_block_size":64,"input_length":3,"input_sequence_hashes":[5]}}}}"#;
    let first = vec![14_879_255_164_371_896_291, 274_632_075_616_497_421];
    // Written down when they ended, and here in the order in which they came.
    assert_eq!(all(text), (Format::Dynamo, Some(64), vec![(0.0, 3, 1, vec![5]), (0.5, 128, 16, first)]));
    let other = r#"{"schema":"dynamo.request.trace.v2","event_type":"request_end","request":{}}"#;
    assert_eq!(wrong(other), "t:1: is a record of dynamo.request.trace.v2, not of dynamo.request.trace.v1");
}

#[test]
fn what_is_no_trace_is_said() {
    assert!(wrong("Hello").starts_with("t:1: this is no trace of a format that is known (mooncake, "));
    assert_eq!(wrong("\n\n"), "t: it has no line: it should have one for each request");
    let missing = Trace::open("/no/such/file".as_ref(), TraceOptions::default()).expect_err("there is none");
    assert!(missing.to_string().starts_with("/no/such/file: cannot be read: "), "{missing}");
    let packed = Trace::open("a.jsonl.xz".as_ref(), TraceOptions::default()).expect_err("not read here");
    assert!(packed.to_string().contains("pipe it, xz -dc a.jsonl.xz"), "{packed}");
}

#[test]
fn compressed_files_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv.gz");
    let mut file = GzEncoder::new(std::fs::File::create(&path).expect("a file"), flate2::Compression::fast());
    file.write_all(b"Timestamp,Request tokens,Response tokens\n1,2,3\n").expect("room");
    file.finish().expect("room");
    let trace = Trace::open(&path, TraceOptions::default()).expect("a trace");
    assert_eq!((trace.format, trace.count()), (Format::BurstGpt, 1));
}

#[test]
fn a_trace_out_of_order_beyond_measure_is_refused() {
    let mut text = String::new();
    for at in 1..20_000 {
        text += &format!("{{\"timestamp\": {at}, \"input_length\": 5, \"output_length\": 5}}\n");
    }
    text += "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n";
    let mut trace =
        Trace::read(Lines::new("t", Cursor::new(text)), TraceOptions::default()).expect("a trace");
    let error = trace.find_map(Result::err).expect("it is refused").to_string();
    assert!(error.starts_with("t:20000: comes before"), "{error}");
}

#[test]
fn names_are_chains() {
    let known = |numbers: [u64; 3]| Blocks::of(0, numbers);
    let (a, b) = (known([1, 2, 3]).names(3, 7), known([1, 5, 3]).names(3, 8));
    assert_eq!(a[0], b[0]);
    assert!(a[1] != b[1] && a[2] != b[2], "the same number behind another beginning is another block");
    assert_eq!(known([1, 2, 3]).names(2, 9), a[..2].into());
    let own = |own| Blocks::Own.names(2, own);
    assert!(own(1)[0] != own(2)[0] && own(1)[1] != own(2)[1]);
    assert_eq!(known([1, 2, 3]).names(4, 7)[..3], a[..]);
    assert_ne!(
        known([1, 2, 3]).names(4, 7)[3],
        known([1, 2, 3]).names(4, 8)[3],
        "what is not named is its own"
    );
}

fn drawn() -> Synthetic {
    Synthetic {
        seed: 5,
        arrivals: Arrivals::Poisson,
        rate: 20.0,
        lasts: Duration::from_secs(600),
        input: 2_000,
        output: 100,
        spread: 0.5,
        shared: 640,
        rounds: 4.0,
        think: Duration::from_secs(3),
        growth: 50,
        block_size: 64,
    }
}

#[test]
fn what_is_drawn_has_the_means_that_were_asked_for() {
    let talks: Vec<Talk> = drawn().talks().collect();
    assert_eq!(talks, drawn().talks().collect::<Vec<_>>(), "a seed gives the same workload");
    let (count, rounds) =
        (talks.len() as f64, talks.iter().map(|talk| talk.rounds.len()).sum::<usize>() as f64);
    assert!((count / 12_000.0 - 1.0).abs() < 0.05, "{count} talks");
    assert!((rounds / count / 4.0 - 1.0).abs() < 0.05, "{rounds} rounds");
    let output: f64 = talks.iter().flat_map(|talk| &talk.rounds).map(|round| f64::from(round.output)).sum();
    assert!((output / rounds / 100.0 - 1.0).abs() < 0.05, "{output} tokens");
    let talk = talks.iter().find(|talk| talk.rounds.len() > 2).expect("a long one");
    let names = |round: usize| talk.rounds[round].blocks.names(talk.rounds[round].input as usize / 64, 1);
    assert_eq!(names(1)[..names(0).len()], names(0)[..], "contexts grow");
    assert_eq!(names(0)[..10], talks[0].rounds[0].blocks.names(10, 2)[..], "all begin alike");
}

#[test]
fn bursts_are_where_they_should_be() {
    let bursts = Synthetic { arrivals: Arrivals::Bursts(Duration::from_secs(60)), rounds: 1.0, ..drawn() };
    let talks: Vec<Talk> = bursts.talks().collect();
    let early = talks.iter().filter(|talk| talk.at.as_secs_f64() % 60.0 < 6.0).count() as f64;
    assert!((early / talks.len() as f64 - 0.5).abs() < 0.03, "{early} of {}", talks.len());
    assert!(talks.windows(2).all(|pair| pair[0].at <= pair[1].at));
}
