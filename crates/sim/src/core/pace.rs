//! Pace at which a job writes its tokens.

use super::{Core, JobId, Phase};

/// Pause between checks of a held stream, in us.
const HELD_LOOK_US: u64 = 1_000_000;

impl Core {
    /// True if jobs stop after their first token, from now on.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Takes a token of job `id` if one is due now; else returns the time when it will be.
    pub fn token_due(&mut self, now_us: u64, id: JobId) -> Result<(), u64> {
        let interval_us = self.pace.tpot_us + self.pace.slope_us * self.decoding as f64;
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(()) };
        let Phase::Decoding { next_us } = job.phase else { return Ok(()) };
        if next_us > now_us as f64 {
            return Err(next_us.ceil() as u64);
        }
        if self.held && job.written > 0 {
            let look_us = now_us.saturating_add(HELD_LOOK_US);
            // Tokens that were not written meanwhile are not made up for.
            job.phase = Phase::Decoding { next_us: look_us as f64 };
            return Err(look_us);
        }
        job.phase = Phase::Decoding { next_us: next_us + interval_us };
        job.written += 1;
        let needed = (job.prompt.tokens.len() + job.written).div_ceil(self.block_tokens);
        // If no block is free, the stream goes on without one: this engine does not preempt.
        if needed > job.blocks.len()
            && let Some(more) = self.blocks.take(&[], 1)
        {
            job.blocks.extend(more);
        }
        Ok(())
    }
}
