//! Append prefill: a decoder that holds nearly all of a prompt computes the rest by itself, between
//! the steps of its running streams, and no prefiller sees the request.
//!
//! It is chosen where its first token is predicted to come sooner than by prefiller, transfer and
//! decoder, by more than a prefiller loses by it ([`Append::is_worth_it`]), and where the harm to
//! the streams that run there keeps within [`AppendRules`]. Pure: the caller passes loads and what
//! each decoder is believed to hold.

use super::choose::{Policy, Standing, TieBreak};
use super::cost::{DecodeCosts, PrefillCosts};
use super::decode::{DecodeCandidate, FULL, choose_decoder, handoff_s};
use super::job::{Job, Seconds};

/// Rules that bound what prompts may cost the streams of a decoder that computes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendRules {
    /// Time between two tokens of its running streams that is not reached; with 0 no decoder
    /// computes a prompt.
    pub gap_s: Seconds,
    /// Most seconds by which all of their tokens together may be late.
    pub late_s: Seconds,
    /// Tokens that a decoder computes within one step: vLLM's `max_num_batched_tokens`.
    pub chunk_tokens: u32,
}

/// Costs of the two kinds of work on a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendCosts {
    /// Costs of computing a prompt there.
    pub prefill: PrefillCosts,
    /// Costs of a step there.
    pub decode: DecodeCosts,
}

/// Grounds of the decision whether a decoder computes a prompt: the same where requests are served
/// and where they are replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendGrounds {
    /// Bounds of the harm.
    pub rules: AppendRules,
    /// Costs that are known.
    pub costs: AppendCosts,
    /// Policy by which a decoder would be chosen for a hand-over.
    pub policy: Policy,
}

/// A prompt's prediction on one decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Append {
    /// Position of the decoder among the candidates.
    pub at: usize,
    /// Leading tokens of the prompt that it need not compute.
    pub held_tokens: u32,
    /// Time until its first token.
    pub first_s: Seconds,
    /// Seconds of computing.
    pub compute_s: Seconds,
    /// Longest time between two tokens of a stream that runs there; 0 without one.
    pub gap_s: Seconds,
    /// Seconds by which the tokens of all these streams are late.
    pub late_s: Seconds,
    /// Time until the first token by prefiller, transfer and decoder, once it is predicted.
    pub handed_over_s: Seconds,
}

impl Default for AppendRules {
    /// A gap that is as long as the loosest limits of the literature for a token, a second for all
    /// streams, and the token budget that Sarathi-Serve takes for strict limits.
    fn default() -> Self {
        Self { gap_s: 0.1, late_s: 1.0, chunk_tokens: 512 }
    }
}

impl AppendRules {
    fn allow(&self, job: &Job, append: &Append) -> bool {
        let left = job.prompt_tokens - append.held_tokens;
        // A decoder that holds less than half of it does not remember the conversation.
        left <= append.held_tokens && append.gap_s < self.gap_s && append.late_s <= self.late_s
    }
}

impl Append {
    /// True if it gives the first token sooner than the hand-over, even if the conversation comes
    /// back to a prefiller, which has to compute then what the decoder computes now.
    #[must_use]
    pub fn is_worth_it(&self) -> bool {
        self.first_s + self.compute_s < self.handed_over_s
    }
}

impl AppendGrounds {
    /// The decoder that would compute the rest of a prompt soonest within the rules, whether that
    /// is worth it or not. `prefilled_s` tells the time until a prefiller would have computed the
    /// prompt; it is asked only where a decoder may.
    #[must_use]
    pub fn weigh(
        &self,
        candidates: &[DecodeCandidate],
        job: &Job,
        prefilled_s: impl FnOnce() -> Seconds,
    ) -> Option<Append> {
        let append = choose_append(&self.rules, &self.costs, candidates, job)?;
        let handed_over_s = prefilled_s() + self.after_prefill_s(candidates, job);
        Some(Append { handed_over_s, ..append })
    }

    /// Predicted seconds from a prompt's end on a prefiller until its first token from a decoder.
    fn after_prefill_s(&self, candidates: &[DecodeCandidate], job: &Job) -> Seconds {
        let decode = &self.costs.decode;
        let chosen = choose_decoder(self.policy, decode, candidates, job, TieBreak::default());
        let decoder = chosen.and_then(|at| candidates.get(at)).copied().unwrap_or_default();
        let step_s = decode.step(f64::from(decoder.running), decoder.kv_tokens as f64);
        let joins_s = if decoder.running > 0 { 0.5 * step_s } else { 0.0 };
        handoff_s(job.prompt_tokens, decoder.held_tokens) + joins_s + step_s
    }
}

/// The prompt's prediction on one decoder: its chunks are added to the steps of the streams there.
#[must_use]
pub fn predict(rules: &AppendRules, costs: &AppendCosts, load: &DecodeCandidate, job: &Job) -> Append {
    let held_tokens = load.held_tokens.min(job.most_spared_tokens());
    let (left, end) = (job.prompt_tokens - held_tokens, job.prompt_tokens);
    let chunk = rules.chunk_tokens.max(1);
    // Those whose prompts are computed before it have tokens by then.
    let streams = f64::from(load.running);
    // A step that computes a prompt takes no less beside that than one of a prefiller.
    let more_s = (costs.prefill.base_s - costs.decode.base_s).max(0.0);
    let step_s = costs.decode.step(streams, load.kv_tokens as f64) + more_s;
    let compute_s = costs.prefill.span(held_tokens, end);
    let has_streams = streams > 0.0;
    // A step is under way, half of it is left.
    let joins_s = if has_streams { 0.5 * step_s } else { 0.0 };
    // Prompts before it may end in the step that takes this one in: a chunk is of them all.
    let most_s = costs.prefill.span(end - end.min(chunk), end);
    let gap_s = step_s + (load.appends_s + compute_s).min(most_s);
    Append {
        at: 0,
        held_tokens,
        first_s: load.appends_s + joins_s + f64::from(left.div_ceil(chunk)) * step_s + compute_s,
        compute_s,
        gap_s: if has_streams { gap_s } else { 0.0 },
        late_s: streams * compute_s,
        handed_over_s: 0.0,
    }
}

/// The decoder that gives the first token soonest within the rules. Those of a worse standing, and
/// those whose KV memory it would fill, are none.
#[must_use]
pub fn choose_append(
    rules: &AppendRules,
    costs: &AppendCosts,
    candidates: &[DecodeCandidate],
    job: &Job,
) -> Option<Append> {
    let usable = |load: &DecodeCandidate| {
        let own = u64::from(job.prompt_tokens) + u64::from(job.output_tokens);
        let most = load.kv_capacity_tokens as f64 * FULL;
        let fits = load.kv_capacity_tokens == 0 || (load.kv_tokens + own) as f64 <= most;
        load.held_tokens > 0 && load.standing == Standing::Good && fits
    };
    let each = candidates.iter().enumerate().filter(|(_, candidate)| usable(candidate));
    let predicted = each.map(|(at, candidate)| Append { at, ..predict(rules, costs, candidate, job) });
    predicted
        .filter(|append| rules.allow(job, append))
        .min_by(|one, other| one.first_s.total_cmp(&other.first_s))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn costs() -> AppendCosts {
        let prefill =
            PrefillCosts { base_s: 0.01, per_token_s: 1e-3, per_square_s: 0.0, ..PrefillCosts::default() };
        AppendCosts { prefill, decode: DecodeCosts { base_s: 0.02, per_request_s: 0.001, per_token_s: 0.0 } }
    }

    fn rules() -> AppendRules {
        AppendRules { gap_s: 0.15, late_s: 0.5, chunk_tokens: 100 }
    }

    fn candidate(held_tokens: u32, running: u32) -> DecodeCandidate {
        DecodeCandidate { held_tokens, running, ..DecodeCandidate::default() }
    }

    fn job(prompt_tokens: u32) -> Job {
        Job { prompt_tokens, output_tokens: 100, ..Job::default() }
    }

    fn pick(candidates: &[DecodeCandidate], prompt_tokens: u32) -> Option<usize> {
        choose_append(&rules(), &costs(), candidates, &job(prompt_tokens)).map(|append| append.at)
    }

    #[test]
    fn chunks_are_added_to_the_steps_of_the_streams() {
        let append = predict(&rules(), &costs(), &candidate(850, 2), &job(1_000));
        let step_s = 0.022;
        let expected = [0.15, 2.5 * step_s + 0.15, step_s + 0.1, 0.3];
        let got = [append.compute_s, append.first_s, append.gap_s, append.late_s];
        got.iter().zip(expected).for_each(|(got, want)| assert!((got - want).abs() < 1e-9, "{append:?}"));
        let alone = predict(&rules(), &costs(), &candidate(850, 0), &job(1_000));
        assert_eq!((alone.gap_s, alone.late_s), (0.0, 0.0), "nobody is harmed");
        // Prompts that are computed before it are streams by then.
        let after = DecodeCandidate { appends_s: 0.4, ..candidate(850, 2) };
        let after = predict(&rules(), &costs(), &after, &job(1_000));
        assert_eq!(after, Append { first_s: append.first_s + 0.4, ..append });
    }

    #[test]
    fn prompts_that_share_a_step_make_one_gap() {
        let gap_s = |appends_s, left: u32| {
            let load = DecodeCandidate { appends_s, ..candidate(1_000 - left, 2) };
            predict(&rules(), &costs(), &load, &job(1_000)).gap_s
        };
        let step_s = 0.022;
        let cases = [((0.0, 40), 0.04), ((0.03, 40), 0.07), ((5.0, 40), 0.1), ((5.0, 300), 0.1)];
        for ((appends_s, left), chunk_s) in cases {
            assert!((gap_s(appends_s, left) - step_s - chunk_s).abs() < 1e-9, "{appends_s} {left}");
        }
        let busy = DecodeCandidate { appends_s: 0.09, ..candidate(960, 2) };
        assert_eq!(
            choose_append(&AppendRules { gap_s: 0.12, ..rules() }, &costs(), &[busy], &job(1_000)),
            None
        );
    }

    #[test]
    fn work_that_a_prefiller_repeats_counts() {
        let append = predict(&rules(), &costs(), &candidate(850, 0), &job(1_000));
        let (first_s, again_s) = (append.first_s, append.compute_s);
        let worth = [first_s + 0.9 * again_s, first_s + 1.1 * again_s]
            .map(|handed_over_s| Append { handed_over_s, ..append }.is_worth_it());
        assert_eq!(worth, [false, true]);
    }

    #[test]
    fn the_holder_of_most_of_it_is_taken_unless_its_streams_would_suffer() {
        assert_eq!(pick(&[candidate(0, 0), candidate(900, 1), candidate(950, 1)], 1_000), Some(2));
        assert_eq!(pick(&[candidate(600, 0), candidate(900, 6)], 1_000), Some(0), "0.6 s late in all");
        assert_eq!(pick(&[candidate(900, 6)], 1_000), None);
        assert_eq!(pick(&[candidate(900, 40)], 1_000), None, "a gap of 0.16 s");
        assert_eq!(pick(&[candidate(400, 0)], 1_000), None, "less than half of it");
    }

    #[test]
    fn a_full_one_and_a_failed_one_are_none() {
        let full = |kv_tokens| DecodeCandidate { kv_tokens, kv_capacity_tokens: 10_000, ..candidate(900, 0) };
        assert_eq!((pick(&[full(7_900)], 1_000), pick(&[full(7_901)], 1_000)), (Some(0), None));
        let resting = DecodeCandidate { standing: Standing::Resting, ..candidate(900, 0) };
        assert_eq!(pick(&[resting], 1_000), None);
    }

    proptest! {
        /// The chosen one is within every rule, no other within them is sooner, and the same one is
        /// chosen twice.
        #[test]
        fn harm_is_bounded_and_the_soonest_is_chosen(
            loads in proptest::collection::vec((0u32..40_000, 0u32..40, 0u64..400_000, 0.0f64..0.5), 0..12),
            prompt in 1u32..40_000, gap_ms in 0u32..300, late_ms in 0u32..2_000, chunk in 1u32..4_096,
        ) {
            let candidates: Vec<DecodeCandidate> = loads.into_iter().map(|(held_tokens, running, kv_tokens, appends_s)| {
                DecodeCandidate {
                    kv_tokens,
                    kv_capacity_tokens: 400_000,
                    appends_s,
                    ..candidate(held_tokens, running)
                }
            }).collect();
            let rules = AppendRules {
                gap_s: f64::from(gap_ms) / 1e3,
                late_s: f64::from(late_ms) / 1e3,
                chunk_tokens: chunk,
            };
            let (costs, job) = (AppendCosts { prefill: PrefillCosts::default(), decode: DecodeCosts::default() }, job(prompt));
            let chosen = choose_append(&rules, &costs, &candidates, &job);
            prop_assert_eq!(chosen, choose_append(&rules, &costs, &candidates, &job));
            let within = |at: usize| {
                let (candidate, append) = (&candidates[at], predict(&rules, &costs, &candidates[at], &job));
                let left = prompt - append.held_tokens;
                let room = 0.9 * 400_000.0 >= (candidate.kv_tokens + u64::from(prompt) + 100) as f64;
                let kept = append.gap_s < rules.gap_s && append.late_s <= rules.late_s;
                (kept && room && append.held_tokens > 0 && left <= append.held_tokens).then_some(append.first_s)
            };
            let soonest = (0..candidates.len()).filter_map(within).min_by(f64::total_cmp);
            prop_assert_eq!(chosen.map(|it| it.first_s), soonest);
            prop_assert_eq!(chosen.and_then(|it| within(it.at)), soonest);
        }
    }
}
