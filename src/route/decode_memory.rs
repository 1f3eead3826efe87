//! Belief about what each decoder holds of conversations: the prompts that it was handed or has
//! computed, and the answers that it generated.
//!
//! Prompts are remembered as those of prefillers are ([`super::resident`]). An answer has no blocks
//! that could be known before the prompt that continues it comes. Its length is remembered with the
//! prompt's last whole block: a prompt that goes on behind that block and is long enough for the
//! answer is taken to contain it. Where that is wrong the decoder computes more than predicted.

use std::collections::{HashMap, VecDeque};

use super::job::{Job, LaneId};
use super::resident::Residents;

/// Most answers of a decoder that are remembered; beyond it those that ended longest ago are
/// forgotten. It is the number of answers of 256 tokens that fit beside their prompts of 1 000 into
/// a memory of five million tokens.
const MAX_ANSWERS: usize = 4096;

/// Beliefs about all decoders, by number.
#[derive(Debug, Default)]
pub struct DecodeMemory {
    residents: Residents,
    answers: Vec<Answers>,
    /// Room that is used again.
    leading: Vec<u32>,
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
        let (Some(answers), Some(last)) =
            (self.answers.get_mut(usize::from(decoder.0)), job.chain().last().copied())
        else {
            return;
        };
        answers.note(last, job.prompt_tokens.saturating_add(answer_tokens));
    }

    /// Sets `out[decoder]` to the leading tokens of a prompt that each decoder is believed to hold,
    /// in whole blocks.
    pub fn held_tokens(&mut self, job: &Job, out: &mut Vec<u32>) {
        let (chain, block_tokens) = (job.chain(), job.chain_tokens());
        self.leading.resize(self.answers.len(), 0);
        self.residents.leading(chain, &mut self.leading);
        out.clear();
        out.extend(self.leading.iter().zip(&self.answers).map(|(blocks, answers)| {
            let last = (*blocks as usize).checked_sub(1).and_then(|last| chain.get(last));
            let whole = blocks.saturating_mul(block_tokens);
            let end = last.and_then(|last| answers.ends.get(last));
            // A shorter prompt is another question about the same text.
            let answered = end.filter(|end| end.tokens <= job.prompt_tokens).map_or(0, |end| end.tokens);
            let beyond = answered.checked_rem(block_tokens).unwrap_or(0);
            whole.max(answered - beyond)
        }));
    }
}

impl Answers {
    fn note(&mut self, last: u64, tokens: u32) {
        self.clock += 1;
        self.ends.insert(last, AnswerEnd { tokens, stamp: self.clock });
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
        Job { prompt_tokens, blocks: blocks.into(), block_tokens: 10, ..Job::default() }
    }

    fn memory(capacity_tokens: u64) -> DecodeMemory {
        let mut memory = DecodeMemory::default();
        (0..2).for_each(|decoder| memory.open(LaneId(decoder), capacity_tokens));
        memory
    }

    fn held(memory: &mut DecodeMemory, job: &Job) -> Vec<u32> {
        let mut out = vec![7; 5];
        memory.held_tokens(job, &mut out);
        out
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

    #[test]
    fn answers_are_bounded_and_the_latest_are_kept() {
        let mut answers = Answers::default();
        for block in 0..3 * MAX_ANSWERS as u64 {
            answers.note(block, 1);
            answers.note(0, 2);
        }
        assert!(answers.order.len() <= MAX_ANSWERS && answers.ends.len() <= MAX_ANSWERS);
        assert_eq!(answers.ends[&0].tokens, 2);
        assert!(answers.ends.contains_key(&(3 * MAX_ANSWERS as u64 - 1)) && !answers.ends.contains_key(&1));
    }
}
