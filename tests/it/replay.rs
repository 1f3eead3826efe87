//! `pd-proxy replay` as people run it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::run;

/// Conversations of several turns: turn t of conversation c has the blocks of the turns before, and
/// more.
fn trace(dir: &Path, requests: u64, output_tokens: u32) -> PathBuf {
    let mut text = String::new();
    for n in 0..requests {
        let (conversation, turn) = (n % 20, n / 20);
        let blocks = 3 + 2 * turn;
        let ids: Vec<String> = (0..=blocks).map(|block| (conversation * 1_000 + block).to_string()).collect();
        writeln!(
            text,
            r#"{{"timestamp": {}, "input_length": {}, "output_length": {output_tokens}, "hash_ids": [{}]}}"#,
            n * 20,
            512 * blocks + 100,
            ids.join(", ")
        )
        .unwrap();
    }
    let path = dir.join("trace.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

fn replay(path: &Path, more: &str) -> (i32, String, String) {
    let mut arguments = vec!["replay", "--trace", path.to_str().unwrap()];
    arguments.extend(more.split_whitespace());
    run(&arguments, &[])
}

fn json(path: &Path, more: &str) -> Value {
    let (code, out, err) = replay(path, &format!("--json {more}"));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn policies_are_compared_in_virtual_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 200, 50);
    let cluster = "--prefillers 3 --decoders 2 --seeds 2 --load 0.8";
    let (code, out, err) = replay(&path, cluster);
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("load 0.8: ") && lines[0].contains(" keeps the SLO for "), "{out}");
    assert!(
        lines[2]
            .starts_with("trace.jsonl: 200 requests, 3P+2D, pool: none; open loop; mean ± 95 % of 2 runs; "),
        "{out}"
    );
    assert!(out.contains("\nload 0.8: "), "{out}");
    let shown = replay(&path, &format!("{cluster} --diverging")).1;
    assert!(shown.contains("| predicted ") && shown.contains("| round-robin "), "{shown}");
    let hidden: Vec<&str> = out
        .lines()
        .find_map(|line| line.strip_prefix("diverge at this load (--diverging shows them): "))
        .map_or_else(Vec::new, |names| names.split(", ").collect());
    assert!(!hidden.contains(&"predicted") && !shown.contains("diverge at this load"), "{out}");
    for name in hidden {
        assert!(!out.contains(&format!("| {name} ")) && shown.contains(&format!("| {name} ")), "{out}");
    }
    assert_eq!(replay(&path, cluster).1, out, "the same seeds say the same");

    let result = json(&path, &format!("{cluster} --policy predicted,random --pool shared"));
    let policies = result["loads"][0]["policies"].as_array().unwrap();
    let [ours, random] = &policies[..] else { panic!("{result}") };
    assert_eq!((ours["policy"].as_str(), random["policy"].as_str()), (Some("predicted"), Some("random")));
    assert_eq!(ours["ttft_p50_ratio"]["mean"], 1.0);
    let p90 = |policy: &Value| policy["ttft_p90_s"]["mean"].as_f64().unwrap();
    assert!(p90(ours) < p90(random), "{result}");
}

#[test]
fn later_turns_wait_for_their_answers_in_a_closed_loop() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 200, 50);
    let cluster = "--prefillers 3 --decoders 2 --seeds 1 --load 2 --policy random";
    let closed = format!("{cluster} --loop closed");
    let text = replay(&path, &closed).1;
    assert!(text.contains("pool: none; closed loop; one run each; "), "{text}");
    assert_eq!(replay(&path, &closed).1, text, "the same seeds say the same");
    let p90 = |more: &str, pace: &str| {
        let result = json(&path, &format!("{cluster} {more}"));
        assert_eq!(result["loop"], pace, "{result}");
        result["loads"][0]["policies"][0]["ttft_p90_s"]["mean"].as_f64().unwrap()
    };
    // At most 20 conversations wait at a time; in an open loop all of their turns do.
    assert!(p90("--loop closed --think-ms 100", "closed") < p90("", "open"));
    let (code, _, err) = replay(&path, &format!("{cluster} --think-ms 100"));
    assert_ne!(code, 0);
    assert!(err.contains("--think-ms: nobody thinks in an open loop; add --loop closed"), "{err}");
}

#[test]
fn runs_are_plotted() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 60, 20);
    let plot = dir.path().join("plot.svg");
    let flags = format!("--seeds 1 --load 0.5,1 --policy predicted,dynamo --plot {}", plot.display());
    let (code, out, err) = replay(&path, &flags);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains(">dynamo</text>"), "{svg}");
    let nowhere = dir.path().join("none").join("plot.svg");
    let (code, _, err) = replay(&path, &format!("--seeds 1 --policy random --plot {}", nowhere.display()));
    assert_ne!(code, 0);
    assert!(err.contains("--plot ") && err.contains("plot.svg: "), "{err}");
}

#[test]
fn the_largest_load_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 100, 20);
    let result =
        json(&path, "--capacity --policy predicted,round-robin --seeds 1 --prefillers 2 --decoders 2");
    let load = |nth: usize| result["capacities"][nth]["load"]["mean"].as_f64().unwrap();
    assert!(load(0) >= load(1) && load(1) > 0.0, "{result}");
}

/// Each split is what `--capacity` finds for such a cluster, by its load of one.
#[test]
fn splits_are_compared_by_the_requests_that_they_bear() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 100, 20);
    let plot = dir.path().join("split.svg");
    let flags = format!("--capacity --ratio 3 --policy predicted,random --seeds 1 --plot {}", plot.display());
    let result = json(&path, &flags);
    let splits = result["splits"].as_array().unwrap();
    let rate = |at: usize| splits[at]["rate_per_s"]["mean"].as_f64().unwrap();
    for (at, (prefillers, decoders)) in [(1, 2), (2, 1)].into_iter().enumerate() {
        assert_eq!(
            (&splits[at]["prefillers"], &splits[at]["decoders"]),
            (&prefillers.into(), &decoders.into())
        );
        let cluster = format!("--policy predicted --seeds 1 --prefillers {prefillers} --decoders {decoders}");
        let found = json(&path, &format!("{cluster} --capacity"));
        let load = found["capacities"][0]["load"]["mean"].as_f64().unwrap();
        let of_one = json(&path, &format!("{cluster} --load 1"))["loads"][0]["rate_per_s"].as_f64().unwrap();
        let borne = load * of_one;
        assert!((rate(at) / borne - 1.0).abs() < 0.05, "{prefillers}P: {} by ratio, {borne}", rate(at));
    }
    let best = splits.iter().filter(|split| split["best"] == true).count();
    assert_eq!((splits.len(), best, result["engines"].as_u64()), (2, 1, Some(3)));
    assert!(std::fs::read_to_string(&plot).unwrap().contains(">prefillers</text>"));
    let (code, out, _) = replay(&path, "--capacity --ratio 2 --seeds 1 --policy predicted");
    assert!(code == 0 && out.starts_with("1P+1D bears most: "), "{out}");
    let (code, _, err) = replay(&path, "--capacity --plot x.svg");
    assert_eq!((code, err.contains("add --ratio N")), (1, true), "{err}");
}

#[test]
fn flags_that_leave_nothing_to_do_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 60, 20);
    for (flags, code, words) in [
        ("--dead --prefillers 1", 1, "--dead: the only prefiller dies, and nobody is left to serve"),
        ("--dead --capacity --ratio 4", 1, "--dead: --ratio also tries a single prefiller"),
        ("--decode-cache --append-chunk 0", 2, "invalid value '0' for '--append-chunk"),
        ("--append-gap-ms 50", 2, "--decode-cache"),
        ("--share-ms 5", 2, "--gateways <N>"),
        ("--gateways 4 --share-lost 5", 2, "--share-ms <MS>"),
        (
            "--far-links 1e300",
            2,
            "invalid value '1e300' for '--far-links <FACTOR>': expected a number from 0.001",
        ),
    ] {
        let (ended, out, err) = replay(&path, &format!("--seeds 1 --policy random {flags}"));
        assert_eq!((ended, out.as_str()), (code, ""), "{flags}");
        assert!(err.contains(words), "{err}");
    }
    let (code, _, err) = replay(&path, "--seeds 1 --load 0.5 --policy random --dead --prefillers 2");
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn policies_that_need_caches_of_decoders_say_so_where_there_are_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 60, 20);
    let flags = "--seeds 1 --load 0.5 --policy predicted,predicted-append --prefillers 2 --decoders 2";
    let note = "predicted-append: decoders keep nothing without --decode-cache";
    let (_, out, _) = replay(&path, flags);
    assert!(out.contains(&format!("\n{note}")), "{out}");
    assert!(json(&path, flags)["note"].as_str().unwrap().starts_with(note));
    for without in [format!("{flags} --decode-cache"), flags.replace(",predicted-append", "")] {
        assert!(!replay(&path, &without).1.contains(note), "{without}");
        assert_eq!(json(&path, &without)["note"], Value::Null, "{without}");
    }
}

#[test]
fn faults_hurt_and_everybody_is_served_nevertheless() {
    let dir = tempfile::tempdir().unwrap();
    let path = trace(dir.path(), 200, 50);
    let cluster = "--prefillers 3 --decoders 2 --seeds 1 --load 0.6 --pool local --policy predicted";
    let p90 = |more: &str| {
        let result = json(&path, &format!("{cluster} {more}"));
        result["loads"][0]["policies"][0]["ttft_p90_s"]["mean"].as_f64().unwrap()
    };
    let healthy = p90("");
    for fault in ["--dead", "--slow 3"] {
        assert!(p90(fault) > healthy, "{fault}");
    }
    for fault in ["--pool-missing 30", "--pool-stale 10", "--gateways 3", "--cost-factor 3"] {
        assert!(p90(fault) > 0.0, "{fault}");
    }
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.jsonl");
    let shown = path.display();
    let (code, _, err) = replay(&path, "");
    assert_eq!((code, err), (1, format!("pd-proxy: {shown}: No such file or directory (os error 2)\n")));
    std::fs::write(&path, "{\"timestamp\": 1}\n").unwrap();
    let (code, _, err) = replay(&path, "");
    let why = "line 1, input_length: expected a whole number from 1 to 16777216";
    assert_eq!((code, err), (1, format!("pd-proxy: {shown}, {why}\n")));
    let good = trace(dir.path(), 3, 3);
    let (code, _, err) = replay(&good, "--policy best");
    assert!(
        code == 1 && err.starts_with("pd-proxy: --policy best: no such policy; there are predicted, "),
        "{err}"
    );
    for wrong in ["--load 0", "--load x", "--prefillers 65", "--pool-missing 101"] {
        assert_eq!(replay(&good, wrong).0, 2, "{wrong}");
    }
    let (code, _, err) = replay(&good, "--url http://a --model m");
    assert!(code == 2 && err.contains("unexpected argument '--url' found"), "no load for a gateway: {err}");
}
