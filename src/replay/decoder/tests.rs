use proptest::prelude::*;

use super::*;

fn costs() -> Costs {
    Costs {
        decode_step_s: 1.0,
        decode_request_s: 0.1,
        decode_token_s: 0.001,
        decode_kv_tokens: 1_000,
        decode_requests: 3,
        decode_chunk_tokens: 50,
        step_s: 1.5,
        token_s: 0.01,
        square_s: 1e-5,
        ..Costs::default()
    }
}

/// A request: the time at which it comes, tokens of its prompt and its answer, and tokens of the
/// prompt that are to be computed.
type Coming = (f64, u32, u32, u32);

/// Lets it run, the request being the position.
fn run(arrivals: &[Coming]) -> Vec<Answer> {
    let (costs, mut decoder, mut answers) = (costs(), Decoder::default(), Vec::new());
    let (mut at, mut next): (usize, Option<f64>) = (0, None);
    let mut computed = Vec::new();
    loop {
        match (arrivals.get(at), next) {
            (Some((time, prompt, output, left)), planned)
                if planned.is_none_or(|planned| *time < planned) =>
            {
                decoder.queue_append(at, prompt - left, *prompt, *output);
                at += 1;
                next = decoder.next(*time, &costs);
            }
            (_, Some(time)) => {
                answers.extend(decoder.turn(time, &costs));
                computed.extend(decoder.take_computed());
                next = decoder.next(time, &costs);
            }
            (_, None) => break,
        }
    }
    answers.sort_by_key(|answer| answer.request);
    computed.sort_unstable();
    let appended = (0..arrivals.len()).filter(|at| arrivals[*at].3 > 0);
    assert_eq!(computed, appended.collect::<Vec<_>>());
    answers
}

struct NaiveStream {
    request: usize,
    context: u64,
    left: u32,
    need: u64,
    /// Tokens of the prompt that are there.
    have: u32,
    prompt: u32,
    first: Option<f64>,
    last: f64,
    worst: f64,
}

impl NaiveStream {
    fn new(request: usize, (_, prompt, output, left): Coming) -> NaiveStream {
        NaiveStream {
            request,
            context: u64::from(prompt),
            left: output,
            need: u64::from(prompt + output),
            have: prompt - left,
            prompt,
            first: None,
            last: 0.0,
            worst: 0.0,
        }
    }
}

/// The same, token by token.
fn naive(arrivals: &[Coming]) -> Vec<Answer> {
    let costs = costs();
    let (mut now, mut at) = (0.0, 0);
    let (mut waiting, mut running, mut answers) = (VecDeque::new(), Vec::<NaiveStream>::new(), Vec::new());
    while answers.len() < arrivals.len() {
        while at < arrivals.len() && (arrivals[at].0 < now || (running.is_empty() && waiting.is_empty())) {
            waiting.push_back((at, arrivals[at]));
            now = f64::max(now, arrivals[at].0);
            at += 1;
        }
        while let Some((request, coming)) = waiting.front().copied() {
            let need = u64::from(coming.1 + coming.2);
            let held: u64 = running.iter().map(|one| one.need).sum();
            let fits = held + need <= costs.decode_kv_tokens && running.len() < costs.decode_requests;
            if !(running.is_empty() || fits) {
                break;
            }
            waiting.pop_front();
            running.push(NaiveStream::new(request, coming));
        }
        let (answering, computing): (Vec<&mut NaiveStream>, Vec<&mut NaiveStream>) =
            running.iter_mut().partition(|one| one.have == one.prompt);
        now += costs.decode(answering.len(), answering.iter().map(|one| one.context).sum());
        if !computing.is_empty() {
            now += costs.step_s - costs.decode_step_s;
        }
        let mut room = costs.decode_chunk_tokens - answering.len() as u32;
        let mut given: Vec<&mut NaiveStream> = answering;
        for one in computing {
            for _ in 0..room.min(one.prompt - one.have) {
                now += costs.span(one.have, one.have + 1);
                (one.have, room) = (one.have + 1, room - 1);
            }
            if one.have == one.prompt {
                given.push(one);
            }
        }
        for one in given {
            (one.left, one.context) = (one.left - 1, one.context + 1);
            if one.first.is_some() {
                one.worst = one.worst.max(now - one.last)
            }
            one.first.get_or_insert(now);
            one.last = now;
        }
        let ended = running.extract_if(.., |one| one.left == 0);
        answers.extend(ended.map(|one| Answer {
            request: one.request,
            first_s: one.first.unwrap(),
            last_s: now,
            worst_gap_s: one.worst,
        }));
    }
    answers.sort_by_key(|answer| answer.request);
    answers
}

#[test]
fn a_lone_request_gets_a_token_each_step() {
    let answers = run(&[(5.0, 100, 3, 0)]);
    let steps = [1.2, 1.201, 1.202];
    let expected = (5.0 + steps[0], 5.0 + steps.iter().sum::<f64>(), steps[2]);
    let Answer { first_s, last_s, worst_gap_s, .. } = answers[0];
    for (got, want) in [(first_s, expected.0), (last_s, expected.1), (worst_gap_s, expected.2)] {
        assert!((got - want).abs() < 1e-9, "{got} {want}");
    }
}

#[test]
fn oversized_request_waits_for_room() {
    let answers = run(&[(0.0, 600, 10, 0), (0.5, 600, 2, 0), (0.6, 5_000, 2, 0)]);
    assert!(answers[1].first_s > answers[0].last_s);
    assert!(answers[2].first_s > answers[1].last_s, "runs alone, since it never fits");
}

#[test]
fn a_stream_waits_for_the_chunks_beside_it() {
    // The second prompt lacks 70 tokens: a chunk of 49 and one of 21 between the first's tokens.
    let answers = run(&[(0.0, 100, 5, 0), (0.1, 170, 2, 70)]);
    let costs = costs();
    let longest_s = costs.decode(1, 101) + 0.5 + costs.span(100, 149);
    assert!((answers[0].worst_gap_s - longest_s).abs() < 1e-9, "{answers:?}");
    // Its first token comes with the end of its prompt, and the other one follows.
    let first_s = costs.decode(1, 100) + longest_s + costs.decode(1, 102) + 0.5 + costs.span(149, 170);
    assert!((answers[1].first_s - first_s).abs() < 1e-9, "{answers:?}");
    assert!((answers[1].last_s - first_s - costs.decode(2, 103 + 171)).abs() < 1e-9, "{answers:?}");
}

proptest! {
    #[test]
    fn stretches_equal_single_steps(
        mut arrivals in proptest::collection::vec((0.0f64..60.0, 1u32..400, 1u32..30, 0.0f64..1.0), 1..25),
        appends in 0.0f64..1.0,
    ) {
        // Of some prompts a part is to be computed, at least their last token.
        let mut arrivals: Vec<Coming> = arrivals
            .drain(..)
            .map(|(at_s, prompt, output, draw)| {
                let left = if draw < appends { 1 + (draw * f64::from(prompt - 1)) as u32 } else { 0 };
                (at_s, prompt, output, left)
            })
            .collect();
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (fast, slow) = (run(&arrivals), naive(&arrivals));
        prop_assert_eq!(fast.len(), arrivals.len());
        for (fast, slow) in fast.iter().zip(&slow) {
            prop_assert_eq!(fast.request, slow.request);
            prop_assert!((fast.first_s - slow.first_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
            prop_assert!((fast.last_s - slow.last_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
            prop_assert!((fast.worst_gap_s - slow.worst_gap_s).abs() < 1e-6, "{:?} {:?}", fast, slow);
        }
    }
}
