//! `[timeout]`: how long each step may take.

use super::bounds::ms;
use super::table::section;

section! {
    /// `[timeout]`: how long each step may take, all in ms.
    Timeout = "timeout" {
        /// Opening a connection to an engine.
        // Connections to engines are opened by clients that are set up once.
        connect_ms: u64 = 3_000, AfterRestart, ms(1);
        /// The whole prefill leg, of a prompt of no length.
        prefill_ms: u64 = 600_000, AtOnce, ms(1);
        /// Time that each 1 000 tokens of its prompt add to the leg that computes it: the prefill
        /// leg, or the decode leg where there is none. No leg has longer than `total_ms`.
        prefill_ms_per_1k_tokens: u64 = 100, AtOnce, ms(0);
        /// One image, sound or film at an encoder.
        encode_ms: u64 = 120_000, AtOnce, ms(1);
        /// From sending the decode leg of a streamed request to the first event with anything of
        /// the answer.
        first_byte_ms: u64 = 600_000, AtOnce, ms(1);
        /// From sending the decode leg of a request that is not streamed to the last byte of its
        /// answer.
        answer_ms: u64 = 1_800_000, AtOnce, ms(1);
        /// Between two chunks of a decoder's stream.
        gap_ms: u64 = 300_000, AtOnce, ms(1);
        /// The whole request, waiting included.
        total_ms: u64 = 3_600_000, AtOnce, ms(1);
        /// A client that takes nothing of its answer.
        write_ms: u64 = 300_000, AtOnce, ms(1);
        /// Time that a client has to read the error event of a stream that broke, before its
        /// connection is cut.
        tell_ms: u64 = 2_000, AtOnce, ms(0);
        /// Reading the client's body.
        body_ms: u64 = 60_000, AtOnce, ms(1);
        /// Of that, the time for which no rate is asked for (`limit.body_rate`).
        body_grace_ms: u64 = 10_000, AtOnce, ms(1);
        /// Reading the client's request head, and waiting for one on an idle connection: longer
        /// than load balancers keep theirs.
        header_ms: u64 = 75_000, AtOnce, ms(1);
        /// A client's TLS handshake.
        handshake_ms: u64 = 10_000, AtOnce, ms(1);
        /// `GET /v1/models`, per engine.
        models_ms: u64 = 3_000, AtOnce, ms(1);
    }
}
