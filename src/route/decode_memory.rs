//! Belief about what each decoder holds of conversations: the prompts that it was handed or has
//! computed, and the answers that it generated.
//!
//! Prompts are remembered as those of prefillers are ([`super::resident`]). An answer has no blocks
//! that could be known before the prompt that continues it comes. Its length is remembered with the
//! prompt's last whole block: a prompt that goes on behind that block and is long enough for the
//! answer is taken to contain it. Other prompts may end in the same block, as short questions
//! behind a system prompt do: then nobody knows whose answer a prompt contains, and none counts.
//! Where a belief is wrong the decoder computes more than predicted, says so by its count of cached
//! tokens, and [`DecodeMemory::learn`] believes less.

use std::collections::{HashMap, VecDeque};

use super::job::{Job, LaneId};
use super::resident::Residents;
use super::trust::{Trust, Verdict};

/// Most answers of a decoder that are remembered; beyond it those that ended longest ago are
/// forgotten. It is the number of answers of 256 tokens that fit beside their prompts of 1 000 into
/// a memory of five million tokens.
const MAX_ANSWERS: usize = 4096;
/// While beliefs are not trusted, one prompt in so many of those that a decoder would compute the
/// rest of goes to that decoder all the same: only its report tells if they are right again.
const TRIAL_EVERY: u32 = 32;
/// Blocks from which on the part of an answer is long enough to tell if it was there.
const TELLING_BLOCKS: u32 = 3;
/// Tokens by which a report may be less than a belief where nobody knows how large the engines'
/// blocks are: two of the largest usual ones.
const UNNAMED_SLACK_TOKENS: u32 = 256;

/// Beliefs about all decoders, by number.
#[derive(Debug, Default)]
pub struct DecodeMemory {
    residents: Residents,
    answers: Vec<Answers>,
    /// Trust in all of it.
    trust: Trust,
    /// Trust in answers, which prompts may repeat otherwise than they were generated.
    answers_trust: Trust,
    /// Prompts that a decoder would have computed the rest of, had beliefs been trusted.
    untrusted: u32,
    /// Room that is used again.
    leading: Vec<u32>,
}

/// Leading tokens of a prompt that a decoder is believed to hold, in whole blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldPrompt {
    /// Tokens of prompts that it was handed or has computed.
    pub prompt_tokens: u32,
    /// The same with the answer to the last of them, where this prompt may continue it.
    pub answered_tokens: u32,
    /// The one or the other: with the answer, unless answers are not trusted.
    pub tokens: u32,
}

/// Comparison of a belief with what a decoder reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldVerdict {
    /// Of the tokens that counted.
    pub verdict: Verdict,
    /// True if beliefs are acted on.
    pub trusted: bool,
    /// True if answers are.
    pub answers_trusted: bool,
}

/// Answers of one decoder, by the last whole block of their prompts.
#[derive(Debug, Default)]
struct Answers {
    ends: HashMap<u64, AnswerEnd>,
    /// Blocks by time, the oldest first; those that came again are stale.
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

/// The end of an answer.
#[derive(Clone, Copy, Debug)]
struct AnswerEnd {
    /// Tokens of its prompt and of itself.
    tokens: u32,
    /// True if a prompt of another conversation ended in the same block.
    is_ambiguous: bool,
    /// Of its place in the order.
    stamp: u64,
}

impl DecodeMemory {
    /// A decoder opens, with room for so many tokens.
    pub fn open(&mut self, decoder: LaneId, capacity_tokens: u64) {
        self.residents.open(decoder, capacity_tokens);
        let at = usize::from(decoder.0);
        if self.answers.len() <= at {
            self.answers.resize_with(at + 1, Answers::default);
        }
        self.answers[at] = Answers::default();
    }

    /// A decoder's memory is gone.
    pub fn close(&mut self, decoder: LaneId) {
        self.residents.close(decoder);
        if let Some(answers) = self.answers.get_mut(usize::from(decoder.0)) {
            *answers = Answers::default();
        }
    }

    /// A prompt goes to a decoder, which was handed it or computes it.
    pub fn enter(&mut self, decoder: LaneId, job: &Job) {
        self.residents.enter(decoder, job.chain(), job.chain_tokens());
    }

    /// A decoder has generated an answer of so many tokens to a prompt.
    pub fn answer(&mut self, decoder: LaneId, job: &Job, answer_tokens: u32) {
        let Some(last) = job.chain().last().copied() else { return };
        // A turn that continues an answer of a block and more ends in a later block: only another
        // conversation's prompt ends in this one.
        let next_end = u32::try_from(job.chain().len() + 1).unwrap_or(u32::MAX);
        let next_end = next_end.saturating_mul(job.chain_tokens());
        let others = self.answers.iter_mut().filter_map(|answers| answers.ends.get_mut(&last));
        let mut is_ambiguous = false;
        for end in others.filter(|end| end.is_ambiguous || end.tokens >= next_end) {
            (end.is_ambiguous, is_ambiguous) = (true, true);
        }
        let tokens = job.prompt_tokens.saturating_add(answer_tokens);
        if let Some(answers) = self.answers.get_mut(usize::from(decoder.0)) {
            answers.note(last, AnswerEnd { tokens, is_ambiguous, stamp: 0 });
        }
    }

    /// True if to act on beliefs.
    pub fn is_trusted(&self) -> bool {
        self.trust.holds()
    }

    /// True if a decoder may compute the rest of a prompt that it is believed to hold: always while
    /// beliefs are trusted, now and then while they are not.
    pub fn allows_append(&mut self) -> bool {
        if self.is_trusted() {
            return true;
        }
        self.untrusted = self.untrusted.wrapping_add(1);
        self.untrusted.is_multiple_of(TRIAL_EVERY)
    }

    /// Sets `out[decoder]` to what each decoder is believed to hold of a prompt, trusted or not.
    pub fn held(&mut self, job: &Job, out: &mut Vec<HeldPrompt>) {
        let (chain, block_tokens) = (job.chain(), job.chain_tokens());
        self.leading.resize(self.answers.len(), 0);
        self.residents.leading(chain, &mut self.leading);
        let answers_count = self.answers_trust.holds();
        out.clear();
        out.extend(self.leading.iter().zip(&self.answers).map(|(blocks, answers)| {
            let last = (*blocks as usize).checked_sub(1).and_then(|last| chain.get(last));
            let prompt_tokens = blocks.saturating_mul(block_tokens);
            let end = last.and_then(|last| answers.ends.get(last));
            // A shorter prompt is another question about the same text.
            let continued = |end: &&AnswerEnd| !end.is_ambiguous && end.tokens <= job.prompt_tokens;
            let answered = end.filter(continued).map_or(0, |end| end.tokens);
            let beyond = answered.checked_rem(block_tokens).unwrap_or(0);
            let answered_tokens = prompt_tokens.max(answered - beyond);
            let tokens = if answers_count { answered_tokens } else { prompt_tokens };
            HeldPrompt { prompt_tokens, answered_tokens, tokens }
        }));
    }

    /// A decoder that was believed to hold so much of a prompt has found `cached_tokens` of it, or
    /// does not say. To be told before [`enter`](Self::enter) is, with the prompt that was counted.
    /// Where less was there, all that the decoder used no later is taken to be gone.
    pub fn learn(
        &mut self,
        decoder: LaneId,
        job: &Job,
        held: HeldPrompt,
        cached_tokens: Option<u64>,
    ) -> HeldVerdict {
        let (most, block_tokens) = (job.most_spared_tokens(), job.chain_tokens().max(1));
        let slack = if job.named { block_tokens } else { block_tokens.max(UNNAMED_SLACK_TOKENS) };
        let verdict_of = |tokens: u32, cached| Verdict::of(u64::from(tokens), cached, u64::from(slack));
        let whole = held.tokens.min(most);
        let verdict = verdict_of(whole, cached_tokens);
        if let Some(cached) = cached_tokens {
            let cached = u32::try_from(cached).unwrap_or(u32::MAX);
            let prompt = held.prompt_tokens.min(most);
            let answer = held.answered_tokens.min(most) - prompt;
            if cached.saturating_add(slack) < prompt {
                self.residents.forget_old(decoder, job.chain(), cached / block_tokens);
            } else if answer >= slack.saturating_mul(TELLING_BLOCKS) {
                let found = u64::from(cached.saturating_sub(prompt));
                self.answers_trust.learn(verdict_of(answer, Some(found)));
            }
            self.trust.learn(verdict_of(prompt, cached_tokens));
        }
        HeldVerdict { verdict, trusted: self.trust.holds(), answers_trusted: self.answers_trust.holds() }
    }
}

impl Answers {
    fn note(&mut self, last: u64, end: AnswerEnd) {
        self.clock += 1;
        self.ends.insert(last, AnswerEnd { stamp: self.clock, ..end });
        self.order.push_back((last, self.clock));
        while self.order.len() > MAX_ANSWERS {
            let Some((oldest, stamp)) = self.order.pop_front() else { return };
            if self.ends.get(&oldest).is_some_and(|end| end.stamp == stamp) {
                self.ends.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(blocks: &[u64], prompt_tokens: u32) -> Job {
        Job { prompt_tokens, blocks: blocks.into(), block_tokens: 10, named: true, ..Job::default() }
    }

    fn memory(capacity_tokens: u64) -> DecodeMemory {
        let mut memory = DecodeMemory::default();
        (0..2).for_each(|decoder| memory.open(LaneId(decoder), capacity_tokens));
        memory
    }

    fn held(memory: &mut DecodeMemory, job: &Job) -> Vec<u32> {
        let mut out = vec![HeldPrompt::default(); 5];
        memory.held(job, &mut out);
        out.iter().map(|held| held.tokens).collect()
    }

    #[test]
    fn a_turn_that_continues_an_answer_finds_both() {
        let mut memory = memory(1_000);
        let first = job(&[1, 2], 25);
        memory.enter(LaneId(1), &first);
        let next = job(&[1, 2, 3, 4, 5, 6], 68);
        assert_eq!(held(&mut memory, &next), [0, 20], "the answer is not there yet");
        memory.answer(LaneId(1), &first, 30);
        assert_eq!(held(&mut memory, &next), [0, 50]);
        assert_eq!(held(&mut memory, &job(&[1, 2, 9, 8], 45)), [0, 20], "too short for the answer");
        assert_eq!(held(&mut memory, &job(&[1, 7, 8, 9, 10, 11], 68)), [0, 10], "another prompt");
        // The next turn's own blocks are known by then.
        memory.enter(LaneId(0), &next);
        assert_eq!(held(&mut memory, &next), [60, 50]);
        memory.answer(LaneId(0), &next, 1);
        assert_eq!(held(&mut memory, &job(&[1, 2, 3, 4, 5, 6, 7], 79)), [60, 50]);
    }

    #[test]
    fn answers_to_prompts_that_end_in_one_block_do_not_count() {
        let mut memory = memory(1_000);
        let next = job(&[1, 2, 3, 4], 48);
        let mut held_after = |decoder, prompt_tokens, answer_tokens| {
            let turn = job(&[1], prompt_tokens);
            memory.enter(LaneId(decoder), &turn);
            memory.answer(LaneId(decoder), &turn, answer_tokens);
            held(&mut memory, &next)
        };
        assert_eq!(held_after(0, 12, 5), [10, 0], "it ends in the next block");
        assert_eq!(held_after(0, 19, 13), [30, 0], "a turn that continues the answer before");
        assert_eq!(held_after(1, 14, 20), [10, 10], "another question behind the same system prompt");
        assert_eq!(held_after(0, 19, 13), [10, 10], "nobody knows which one is continued");
    }

    #[test]
    fn prompt_that_is_pushed_out_is_not_believed() {
        let mut memory = memory(40);
        let first = job(&[1, 2], 20);
        memory.enter(LaneId(0), &first);
        memory.answer(LaneId(0), &first, 10);
        memory.enter(LaneId(0), &job(&[5, 6, 7], 30));
        assert_eq!(held(&mut memory, &job(&[1, 2, 3, 4], 40)), [10, 0], "the end of the prompt is gone");
        memory.close(LaneId(0));
        assert_eq!(held(&mut memory, &job(&[5, 6], 20)), [0, 0]);
    }

    /// A conversation whose next prompt is told to a decoder, which finds so many tokens of it.
    fn turn(memory: &mut DecodeMemory, seed: u64, cached_tokens: u64) -> HeldVerdict {
        let blocks: Vec<u64> = (0..9).map(|at| seed * 100 + at).collect();
        let (first, next) = (job(&blocks[..2], 25), job(&blocks, 95));
        memory.enter(LaneId(0), &first);
        memory.answer(LaneId(0), &first, 50);
        let mut out = Vec::new();
        memory.held(&next, &mut out);
        memory.learn(LaneId(0), &next, out[0], Some(cached_tokens))
    }

    #[test]
    fn answer_that_prompts_repeat_otherwise_does_not_count_until_it_does() {
        let mut memory = memory(1_000);
        assert_eq!(turn(&mut memory, 0, 70).verdict, Verdict::Hit);
        let said = (1..=20).map(|seed| turn(&mut memory, seed, 20)).last();
        let miss = HeldVerdict { verdict: Verdict::Miss, trusted: true, answers_trusted: false };
        assert_eq!(said, Some(miss), "the prompts were there");
        assert_eq!(turn(&mut memory, 21, 20).verdict, Verdict::Hit, "only the prompt counts");
        let said = (22..=26).map(|seed| turn(&mut memory, seed, 70)).last();
        assert_eq!(said.map(|said| said.answers_trusted), Some(true));
    }

    #[test]
    fn decoder_without_a_cache_is_not_believed_but_tried() {
        let mut memory = memory(1_000);
        let last = (0..20).map(|seed| turn(&mut memory, seed, 0)).last();
        assert_eq!(last.map(|last| last.trusted), Some(false));
        assert_eq!((0..3 * TRIAL_EVERY).filter(|_| memory.allows_append()).count(), 3);
        let last = (20..25).map(|seed| turn(&mut memory, seed, 70)).last();
        assert_eq!(last.map(|last| last.trusted), Some(true));
        assert!((0..TRIAL_EVERY).all(|_| memory.allows_append()));
    }

    #[test]
    fn prompts_used_no_later_than_a_lost_one_are_lost() {
        let mut memory = memory(1_000);
        let prompts = [job(&[1, 2, 3], 30), job(&[4, 5, 6], 30), job(&[7, 8, 9], 30)];
        prompts.iter().for_each(|prompt| memory.enter(LaneId(0), prompt));
        let mut out = Vec::new();
        let question = job(&[4, 5, 6, 10], 45);
        memory.held(&question, &mut out);
        assert_eq!(out[0].tokens, 30);
        assert_eq!(memory.learn(LaneId(0), &question, out[0], Some(10)).verdict, Verdict::Miss);
        let left = prompts.each_ref().map(|prompt| held(&mut memory, prompt)[0]);
        assert_eq!(left, [0, 0, 30], "the second prompt's first block is not worth a node of its own");
        memory.enter(LaneId(0), &question);
        assert_eq!(held(&mut memory, &question)[0], 40);
    }

    #[test]
    fn answers_are_bounded_and_the_latest_are_kept() {
        let mut answers = Answers::default();
        let end = AnswerEnd { tokens: 0, is_ambiguous: false, stamp: 0 };
        for block in 0..3 * MAX_ANSWERS as u64 {
            answers.note(block, AnswerEnd { tokens: 1, ..end });
            answers.note(0, AnswerEnd { tokens: 2, ..end });
        }
        assert!(answers.order.len() <= MAX_ANSWERS && answers.ends.len() <= MAX_ANSWERS);
        assert_eq!(answers.ends[&0].tokens, 2);
        assert!(answers.ends.contains_key(&(3 * MAX_ANSWERS as u64 - 1)) && !answers.ends.contains_key(&1));
    }
}
