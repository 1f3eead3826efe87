//! `[autoscale]`: latencies that the number of engines is to keep.

use super::bounds::ms;
use super::table::section;

section! {
    /// `[autoscale]`: latencies by which the metrics for autoscalers say how many engines a role
    /// needs. They change no request.
    Autoscale = "autoscale" {
        /// Nine of ten prompts wait no longer than this for a prefiller, and items for an encoder,
        /// ms. What a prompt itself takes is not in it: more engines don't make that shorter.
        wait_ms: u64 = 1_000, AfterRestart, ms(0);
        /// A decoder's step takes no longer than this, which is the time per output token, ms.
        tpot_ms: u64 = 50, AfterRestart, ms(1);
    }
}
