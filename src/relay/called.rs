//! Waiting for the call of a decoder that was asked first.
//!
//! A decoder calls when it has room for the prompt, so that one which is full is right to wait. One
//! that has nothing else of ours, and calls for none of it while its peers begin answers, or for
//! much longer than calls took, does nothing with what it is sent.

use std::pin::pin;

use bytes::Bytes;
use tokio::time::Instant;

use crate::fleet::Pace;
use crate::relay::Relay;
use crate::relay::ask::Ask;
use crate::relay::decode_first::Partner;
use crate::relay::failure::{Failure, FailureKind};
use crate::relay::progress::Waiting;
use crate::relay::rendezvous::Meeting;

impl Relay {
    /// Waits for the decoder's call, and gives what the prefiller is to be told.
    ///
    /// # Errors
    /// The failure of a decoder that does not call in time, or does nothing.
    pub(super) async fn called(
        &self,
        ask: &Ask,
        meeting: &Meeting,
        partner: &Partner,
    ) -> Result<Bytes, Failure> {
        let (limit, sent) = (self.settings.now().first_byte, Instant::now());
        let decoder = &partner.decoder;
        let _uncalled = decoder.await_call();
        let call = pin!(async { meeting.params().await.ok_or_else(|| Failure::not_called(limit)) });
        let waiting = Waiting::on(decoder, Some(Pace::Call), ask.shape.prompt_tokens);
        let waiting = Waiting { is_moved: partner.is_moved, ..waiting };
        let params = self.within(limit, waiting, &partner.written, call).await.map_err(|failure| {
            match failure.why {
                FailureKind::Timeout => Failure::not_called(limit),
                _ => failure,
            }
        })?;
        decoder.paces().observe(Pace::Call, sent.elapsed());
        Ok(params)
    }
}
