//! Large futures in memory of their own.

use std::pin::Pin;

/// Boxes the value of `make`. In a release build the value is made where it stays: `Box::pin` has
/// it made on the stack and moved, which for the future of a request are 10 KB. The compiler does
/// not promise that; the counts of `benches/instructions.tsv` tell.
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
