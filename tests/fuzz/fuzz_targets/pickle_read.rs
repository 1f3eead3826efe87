//! The pickle reader takes any bytes; what it reads can be written, and reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pd_proxy::codec::pickle::{Protocol, ReadLimits, read, write};

const LIMITS: ReadLimits = ReadLimits { max_bytes: 64 << 10, max_items: 4 << 10, max_text_bytes: 1 << 20 };
/// Spelled out without references, frames and puts included, it may take more.
const WIDER: ReadLimits = ReadLimits { max_bytes: 8 << 20, max_items: 64 << 10, max_text_bytes: 1 << 20 };

fuzz_target!(|input: &[u8]| {
    if let Ok(value) = read(input, LIMITS) {
        for protocol in [Protocol::V3, Protocol::V4, Protocol::V5] {
            let written = write(&value, protocol).expect("read no deeper than is written");
            assert_eq!(read(&written, WIDER).as_ref(), Ok(&value));
        }
    }
});
