//! Recorded traffic: the values of public bug reports, then the public traces themselves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use inferometer::error::Result;
use inferometer::traffic::content::largest_hit;
use inferometer::traffic::traces::{Dropped, TimeUnit, Trace, TraceForm, TraceOptions};
use proptest::prelude::*;

fn open(path: &str, options: &TraceOptions) -> Result<Trace> {
    Trace::open(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path), options)
}

fn read(path: &str) -> Trace {
    open(path, &TraceOptions::default()).unwrap()
}

fn text(text: &str) -> Result<Trace> {
    Trace::read("trace", text.as_bytes(), &TraceOptions::default())
}

fn message(result: Result<Trace>) -> String {
    result.unwrap_err().to_string()
}

fn offsets(trace: &Trace) -> Vec<f64> {
    trace.requests.iter().map(|r| r.offset.as_secs_f64()).collect()
}

fn tokens(trace: &Trace) -> Vec<(u64, u64)> {
    trace.requests.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect()
}

fn noted(trace: &Trace, what: &str) -> bool {
    trace.notes.iter().any(|n| n.contains(what))
}

/// Tokens of each request that an infinite cache of `block` tokens gives, in order of arrival.
fn hits(trace: &Trace, block: u64) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let one = |i: usize| {
        let keys = trace.content(i).block_keys(block);
        let known = keys.iter().take_while(|k| seen.contains(*k)).count() as u64 * block;
        seen.extend(keys);
        known.min(largest_hit(trace.requests[i].prompt_tokens, block))
    };
    (0..trace.requests.len()).map(one).collect()
}

/// smg#636: a missing time is no zero.
#[test]
fn c35_missing_times_and_hashes() {
    assert!(
        message(open("cases/C35/no_timestamp.jsonl", &TraceOptions::default()))
            .contains("give a rate or a concurrency")
    );
    let untimed = TraceOptions { untimed: true, ..TraceOptions::default() };
    let trace = open("cases/C35/no_timestamp.jsonl", &untimed).unwrap();
    assert_eq!((trace.timed, trace.requests.len()), (false, 3));
    assert_eq!(hits(&trace, 16), [0, 512, 0]);
    assert!(message(open("cases/C35/one_missing.jsonl", &TraceOptions::default())).contains(":2:"));
    let trace = read("cases/C35/no_hash_ids.jsonl");
    assert_eq!((trace.requests.len(), trace.duration().as_secs_f64()), (3, 2.0));
    assert_eq!(hits(&trace, 16), [0, 0, 0]);
    assert!(tokens(&trace).iter().all(|t| t.0 == 100));
}

/// guidellm#948, fireworks benchmark#115: ids against lengths, and the last token.
#[test]
fn c37_ids_and_lengths() {
    let trace = read("cases/C37/mismatch.jsonl");
    assert!(noted(&trace, "line 1: 2 hash ids of 512 tokens need at least 513 tokens"), "{:?}", trace.notes);
    assert_eq!(trace.content(0).tokens(), 20);
    assert_eq!(trace.content(1).tokens(), 1000);
    assert_eq!(hits(&trace, 16), [0, 0, 0, 1008]);
    assert_eq!(hits(&trace, 512), [0, 0, 0, 512]);
    // The same prompts again: the first can give no more than 19 tokens, the second what its block covers.
    let twice = |line: &str| text(&format!("{line}\n{line}\n")).unwrap();
    let again = twice(r#"{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]}"#);
    assert_eq!(hits(&again, 1)[1], 19);
    let again = twice(r#"{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [3]}"#);
    assert_eq!(hits(&again, 16)[1], 512);
    // Blocks of 16 tokens read as 512 would make prompts of 64 tokens out of 2,000: refused, with the remedy.
    let row = |i: u64| {
        format!(r#"{{"timestamp": {i}, "input_length": 64, "output_length": 1, "hash_ids": [1, 2, 3, {i}]}}"#)
    };
    let small = (0..4).map(row).collect::<Vec<_>>().join("\n");
    assert!(message(text(&small)).contains("block_tokens = 16"));
    let options = TraceOptions { block_tokens: 16, ..TraceOptions::default() };
    assert_eq!(hits(&Trace::read("t", small.as_bytes(), &options).unwrap(), 16), [0, 48, 48, 48]);
}

/// vllm#55937, `RAGPulse`, aiperf#786.
#[test]
fn c38_order_and_odd_numbers() {
    let trace = read("cases/C38/order.jsonl");
    assert_eq!(offsets(&trace), [0.0, 1.0, 6.0, 6.0]);
    assert_eq!(tokens(&trace).iter().map(|t| t.0).collect::<Vec<_>>(), [11, 13, 10, 12]);
    assert!(noted(&trace, "line 2"), "{:?}", trace.notes);
    assert!(message(open("cases/C38/nan.jsonl", &TraceOptions::default())).contains("nan.jsonl:2:"));
    let trace = read("cases/C38/strings_rag.jsonl");
    assert_eq!(offsets(&trace), [0.0, 82.0, 93.0]);
    assert!(noted(&trace, "seconds") && noted(&trace, "ignored"), "{:?}", trace.notes);
    assert_eq!(trace.requests[0].session.as_deref(), Some("s-1"));
    let trace = read("cases/C38/zero_len.jsonl");
    assert_eq!((trace.rows, tokens(&trace)), (4, vec![(5, 2)]));
    for reason in [Dropped::ZeroInput, Dropped::ZeroOutput, Dropped::Negative] {
        assert_eq!(trace.dropped[&reason], 1, "{reason:?}");
    }
}

/// aiperf#786, BurstGPT#11.
#[test]
fn c40_burstgpt_by_column_name() {
    let trace = read("cases/C40/burst6.csv");
    assert_eq!((trace.form, trace.rows), (TraceForm::BurstGpt, 4));
    assert_eq!((offsets(&trace), tokens(&trace)), (vec![0.0, 40.0], vec![(472, 18), (1087, 230)]));
    assert_eq!((trace.dropped[&Dropped::ZeroOutput], trace.dropped[&Dropped::ZeroInputAndOutput]), (1, 1));
    let keep = TraceOptions { keep_failures: true, ..TraceOptions::default() };
    let kept = open("cases/C40/burst6.csv", &keep).unwrap();
    assert_eq!((kept.requests.len(), kept.requests[2].failed, kept.requests[2].output_tokens), (3, true, 1));
    let trace = read("cases/C40/burst8.csv");
    assert_eq!((offsets(&trace), tokens(&trace)), (vec![0.0, 51.0], vec![(906, 446), (36, 29)]));
    assert!(message(open("cases/C40/no_header.csv", &TraceOptions::default())).contains("not recognised"));
    assert_eq!(tokens(&read("cases/C40/reordered.csv")), [(472, 18)]);
}

/// Azure's dialects; the machine's time zone plays no part.
#[test]
fn c41_azure_dialects() {
    let trace = read("cases/C41/azure_2023.csv");
    assert_eq!(
        trace.requests.iter().map(|r| r.offset.as_nanos()).collect::<Vec<_>>(),
        [0, 4_314_579_000, 4_541_877_000]
    );
    assert_eq!(tokens(&trace).iter().map(|t| t.1).collect::<Vec<_>>(), [44, 109, 55]);
    let trace = read("cases/C41/azure_mm.csv");
    assert_eq!((offsets(&trace), tokens(&trace)), (vec![0.0, 5.55], vec![(770, 491), (949, 126)]));
    assert!(noted(&trace, "images"));
    let trace = read("cases/C41/azure_mixed.csv");
    assert_eq!(offsets(&trace), [0.0, 0.001_163, 10.5, 20.5, 28_820.25]);
    assert!(noted(&trace, "no zone"), "{:?}", trace.notes);
}

#[test]
fn bad_traces_are_refused_with_their_line() {
    for (trace, expected) in [
        ("", "empty"),
        ("\n \n", "empty"),
        ("[{}]", "JSONL"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no rows"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5\n", "\"GeneratedTokens\" is missing"),
        ("Timestamp,Request tokens\n5,5\n", "\"Response tokens\" is missing"),
        ("arrival_s,prompt_tokens\n5,5\n", "\"output_tokens\" is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", ":2: TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n,5,5\n", ":2: TIMESTAMP: the arrival time is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,5\n", ":2: 2 fields"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,many,5\n", ":3: prompt_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,5.5\n", ":2: output_tokens"),
        ("arrival_s,prompt_tokens,output_tokens\nNaN,5,5\n", ":2: arrival_s"),
        ("arrival_s,prompt_tokens,output_tokens\n0,5,0\n", "no usable row"),
        ("prompt_tokens,output_tokens\n5,5\n", "give a rate or a concurrency"),
        ("{\"timestamp\": 0, \"input_length\": 5}\n", ":1: the key \"output_length\""),
        ("{\"timestamp\": 0, \"input_length\": 5.5, \"output_length\": 5}\n", ":1: input_length"),
        ("{\"timestamp\": 0, \"input_length\": \"5\", \"output_length\": 5}\n", ":1: input_length"),
        ("{\"timestamp\": true, \"input_length\": 5, \"output_length\": 5}\n", ":1: timestamp"),
        (
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [1.5]}\n",
            ":1: hash_ids",
        ),
        ("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n5\n", ":2: not a JSON object"),
        (
            "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": \"1\", \"input_length\": 5, \"output_length\": 5}\n",
            ":2: timestamp",
        ),
    ] {
        let message = message(text(trace));
        assert!(message.contains(expected), "{trace:?}: {message}");
    }
}

#[test]
fn plain_forms_and_units() {
    let csv = text(
        "session_id,output_tokens,arrival_ms,prompt_tokens,hash_ids\na,7,1500,1030,1 2\nb,8,3000,1024,1;3\n",
    )
    .unwrap();
    assert_eq!(
        (csv.form, offsets(&csv), tokens(&csv)),
        (TraceForm::Plain, vec![0.0, 1.5], vec![(1030, 7), (1024, 8)])
    );
    assert_eq!(hits(&csv, 16), [0, 512]);
    let lines = text("{\"arrival_s\": 0.25, \"prompt_tokens\": 9, \"output_tokens\": 3}\n{\"arrival_s\": 1, \"prompt_tokens\": 9, \"output_tokens\": 3}\n").unwrap();
    assert_eq!(offsets(&lines), [0.0, 0.75]);
    let mooncake = "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 3}\n{\"timestamp\": 3, \"input_length\": 9, \"output_length\": 3}\n";
    assert!((text(mooncake).unwrap().duration().as_secs_f64() - 0.003).abs() < 1e-12);
    let seconds = TraceOptions { time_unit: Some(TimeUnit::Seconds), ..TraceOptions::default() };
    assert!(
        (Trace::read("t", mooncake.as_bytes(), &seconds).unwrap().duration().as_secs_f64() - 3.0).abs()
            < 1e-12
    );
    let wide = text("{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [18446744073709551615, -1]}\n").unwrap();
    assert_eq!(wide.requests[0].hash_ids, [u64::MAX, u64::MAX]);
}

#[test]
fn plain_traces_may_have_stamps_and_other_delimiters() {
    let csv = text("\u{feff}timestamp;prompt_tokens;output_tokens\n2024-05-12T00:00:00Z;5;6\n2024-05-12 00:00:01.5;7;8\n").unwrap();
    assert_eq!((offsets(&csv), tokens(&csv)), (vec![0.0, 1.5], vec![(5, 6), (7, 8)]));
    assert!(csv.start_nanos.is_some() && noted(&csv, "no zone"));
    let tabs = text("arrival_s\tprompt_tokens\toutput_tokens\n1\t5\t6\n").unwrap();
    assert_eq!(tokens(&tabs), [(5, 6)]);
    let row = |t: &str| format!(r#"{{"timestamp": "{t}", "input_length": 5, "output_length": 6}}"#);
    let lines = text(&[row("2024-05-12T00:00:00Z"), row("2024-05-12T00:00:02+00:00")].join("\n")).unwrap();
    assert_eq!(offsets(&lines), [0.0, 2.0]);
    assert!(message(text(&[row("5"), row("2024-05-12T00:00:02")].join("\n"))).contains(":2: timestamp"));
    assert!(
        message(text("arrival_s,prompt_tokens,output_tokens\n2024-05-12 00:00:00,1,1\n7,1,1\n"))
            .contains(":3: arrival_s")
    );
}

#[test]
fn requests_that_are_too_long_are_told_and_never_clipped() {
    let trace = read("data/traces/mooncake-conversation-first-1000.jsonl");
    let long: Vec<u64> = trace.longer_than(65_536).map(|r| r.line).collect();
    assert!(!long.is_empty() && long.len() < 100, "{}", long.len());
    assert_eq!(trace.longer_than(1 << 20).count(), 0);
}

#[test]
fn azure_2023_code_as_its_authors_published_it() {
    let trace = read("data/traces/azure-2023-code.csv");
    assert_eq!((trace.rows, trace.requests.len()), (8_819, 8_819));
    assert!((trace.duration().as_secs_f64() - 3_435.948).abs() < 1e-3, "{}", trace.duration());
    let (input, output) = tokens(&trace).iter().fold((0, 0), |(i, o), t| (i + t.0, o + t.1));
    assert_eq!((input, output), (18_059_974, 245_896));
    let mut lengths: Vec<u64> = tokens(&trace).iter().map(|t| t.0).collect();
    lengths.sort_unstable();
    assert_eq!((lengths[0], lengths[lengths.len() / 2], lengths[lengths.len() - 1]), (3, 1_469, 7_437));
    // 2023-11-16 18:17:03.9799600 UTC.
    assert_eq!(trace.start_nanos, Some(1_700_158_623_979_960_000));
    assert!(trace.notes.is_empty(), "{:?}", trace.notes);
}

#[test]
fn the_other_public_forms_are_read_as_they_are() {
    let trace = read("data/traces/azure-2024-code-head-tail.csv");
    assert_eq!((trace.requests.len(), tokens(&trace)[0]), (10, (2162, 5)));
    assert!((trace.requests[1].offset.as_secs_f64() - 0.007_405).abs() < 1e-9);
    assert_eq!(read("data/traces/azure-2025-multimodal-head-tail.csv").requests.len(), 10);
    assert_eq!(tokens(&read("data/traces/burstgpt-1-head.csv"))[0], (472, 18));
    let burst = read("data/traces/burstgpt-3-head.csv");
    assert_eq!((tokens(&burst)[0], offsets(&burst)[1]), ((906, 446), 51.0));
    let rag = read("data/traces/ragpulse-first-50.jsonl");
    assert_eq!(rag.rows, 50);
    assert!(noted(&rag, "ignored"));
    assert!(rag.requests.windows(2).all(|w| w[0].offset <= w[1].offset));
}

#[test]
fn mooncake_hashes_say_what_is_shared() {
    let trace = read("data/traces/mooncake-conversation-first-1000.jsonl");
    assert_eq!((trace.form, trace.requests.len()), (TraceForm::Mooncake, 1_000));
    for (i, request) in trace.requests.iter().enumerate() {
        assert_eq!(request.hash_ids.len() as u64, request.prompt_tokens.div_ceil(512), "{}", request.line);
        assert_eq!(trace.content(i).tokens(), request.prompt_tokens);
    }
    let (coarse, fine): (u64, u64) = (hits(&trace, 512).iter().sum(), hits(&trace, 16).iter().sum());
    let all: u64 = tokens(&trace).iter().map(|t| t.0).sum();
    // The bound counts leading ids seen before, the last partial block included.
    let mut seen = BTreeSet::new();
    let bound: u64 = trace
        .requests
        .iter()
        .map(|r| {
            let known = r.hash_ids.iter().take_while(|id| seen.contains(*id)).count() as u64;
            seen.extend(r.hash_ids.iter().copied());
            (known * 512).min(r.prompt_tokens)
        })
        .sum();
    assert!(coarse > 0 && coarse <= fine && fine <= bound, "{coarse} {fine} {bound}");
    assert!(bound - fine < all / 100, "{fine} of {bound}");
}

#[test]
fn merged_traces_have_one_zero() {
    let late =
        text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 10:00:10,1,1\n2023-11-16 10:00:12,2,2\n")
            .unwrap();
    let early =
        text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 10:00:00,3,3\n2023-11-16 10:00:11,4,4\n")
            .unwrap();
    let merged = Trace::merge(vec![late, early]).unwrap();
    assert_eq!(offsets(&merged), [0.0, 10.0, 11.0, 12.0]);
    assert_eq!(tokens(&merged).iter().map(|t| t.0).collect::<Vec<_>>(), [3, 1, 4, 2]);
    let no_clock = text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n").unwrap();
    assert!(Trace::merge(vec![no_clock]).is_err());
}

proptest! {
    #[test]
    fn rows_are_used_or_counted(rows in prop::collection::vec((-5_i64..50, -2_i64..5, -2_i64..5), 1..40)) {
        let csv: String = std::iter::once("arrival_s,prompt_tokens,output_tokens\n".to_owned())
            .chain(rows.iter().map(|(t, i, o)| format!("{t},{i},{o}\n")))
            .collect();
        match text(&csv) {
            Err(e) => prop_assert!(e.to_string().contains("no usable row")),
            Ok(trace) => {
                prop_assert_eq!(trace.rows, rows.len() as u64);
                prop_assert_eq!(trace.requests.len() as u64 + trace.dropped.values().sum::<u64>(), trace.rows);
                prop_assert!(trace.requests.windows(2).all(|w| w[0].offset < w[1].offset
                    || (w[0].offset == w[1].offset && w[0].line < w[1].line)));
                prop_assert_eq!(trace.requests[0].offset.as_nanos(), 0);
            }
        }
    }
}
