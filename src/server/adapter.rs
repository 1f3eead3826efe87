//! The adapter that a SageMaker client names in a header of `/invocations`.
//!
//! vLLM (0.12 and later) has it from AWS's model-hosting-container-standards (0.1.16): whatever the
//! body says, `model` is what this header says, and nothing where there is none. So it is written
//! into the body before anything reads that, and goes on to engines with the request, on this path
//! alone: taken out, they would answer with the model that they have without adapters.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::codec::json::{Edit, Object, quote};
use crate::error::{Error, Kind};

/// Name of the header.
pub(super) const ADAPTER: HeaderName = HeaderName::from_static("x-amzn-sagemaker-adapter-identifier");

/// An adapter that is asked for.
pub(super) struct Adapter<'a> {
    value: &'a HeaderValue,
    name: &'a str,
}

impl Adapter<'_> {
    /// The one that `headers` name; of several the first, as engines read them.
    ///
    /// # Errors
    /// `InvalidField` where it is no visible ASCII, which is all that JSON and Python's servers
    /// read alike.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Adapter<'_>>, Error> {
        let Some(value) = headers.get(ADAPTER) else { return Ok(None) };
        let name = value.to_str().map_err(|_| {
            let message = "the header X-Amzn-SageMaker-Adapter-Identifier holds something else than visible ASCII: name \
                           the adapter as the engines' /v1/models does";
            Error::new(Kind::InvalidField, message).param("model")
        })?;
        Ok(Some(Adapter { value, name }))
    }

    /// The text of `body` with the adapter as its model.
    pub(super) fn within(&self, body: &Object) -> Bytes {
        body.splice(&Edit::new().set("model", quote(self.name))).to_bytes()
    }

    /// Tells engines as well; of an alias, the name that they know.
    pub(super) fn onto(&self, headers: &mut HeaderMap, model: Option<&str>) {
        let model = model.and_then(|model| HeaderValue::from_str(model).ok());
        headers.insert(ADAPTER, model.unwrap_or_else(|| self.value.clone()));
    }
}
