//! The crate `pd-proxy-core` alone: what a prefill leg's body looks like, without parsing the
//! client's.
//!
//! `cargo run -p pd-proxy-core --example edit_body`

use pd_proxy_core::codec::json::{Edit, JsonError, Object, ScanLimits};

fn main() -> Result<(), JsonError> {
    let client = r#"{"model": "m", "prompt": "Gr\u00fc\u00dfe", "max_tokens": 200, "max\u005ftokens": 300, "stream": true}"#;
    let body = Object::scan(client.into(), ScanLimits::default())?;
    println!("the client sends {client}");
    println!("max_tokens is    {:?} (the last one counts)", body.get("max_tokens").and_then(|v| v.as_u64()));
    let edit = Edit::new().set("max_tokens", "1".into()).set("stream", "false".into());
    let prefill = body.splice(&edit);
    println!("the prefiller gets {} pieces of it, {} bytes:", prefill.iter().count(), prefill.len_bytes());
    println!("                 {}", String::from_utf8_lossy(&prefill.to_bytes()));
    Ok(())
}
