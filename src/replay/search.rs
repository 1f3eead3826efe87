//! The largest load that is borne.

/// This share of the requests must get what they are promised.
const SHARE: f64 = 0.9;

/// The result is so close to the truth, in units of load.
const WIDTH: f64 = 0.02;

/// Width at which the search ends for loads near 0.
const LEAST_WIDTH: f64 = 1e-3;

/// Highest load that is tried; beyond it the search ends.
const LOAD_MAX: f64 = 64.0;

/// Finds by bisection the largest load at which `share` is at least nine in ten, provided that it
/// falls with the load. 0 if there is none.
///
/// # Errors
/// The first of `share`.
pub fn capacity<E>(share: impl FnMut(f64) -> Result<f64, E>) -> Result<f64, E> {
    bisect(share, |_| WIDTH)
}

/// The same, as close in proportion to the load.
///
/// # Errors
/// The first of `share`.
pub fn fine_capacity<E>(share: impl FnMut(f64) -> Result<f64, E>) -> Result<f64, E> {
    bisect(share, |too_much| (WIDTH * too_much).max(LEAST_WIDTH))
}

fn bisect<E>(mut share: impl FnMut(f64) -> Result<f64, E>, width: impl Fn(f64) -> f64) -> Result<f64, E> {
    let (mut borne, mut too_much) = (0.0, 1.0);
    while too_much < LOAD_MAX && share(too_much)? >= SHARE {
        (borne, too_much) = (too_much, 2.0 * too_much);
    }
    while too_much - borne > width(too_much) {
        let middle = f64::midpoint(borne, too_much);
        if share(middle)? >= SHARE { borne = middle } else { too_much = middle }
    }
    Ok(borne)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(limit: f64) -> f64 {
        capacity(|load| Ok::<f64, ()>(if load <= limit { 0.95 } else { 0.5 })).unwrap()
    }

    #[test]
    fn the_limit_is_found() {
        for limit in [0.1, 0.5, 0.77, 1.0, 1.3, 11.0] {
            assert!((limit - WIDTH..=limit).contains(&found(limit)), "{limit}: {}", found(limit));
        }
        for limit in [0.03, 0.5, 7.0] {
            let fine = fine_capacity(|load| Ok::<f64, ()>(if load <= limit { 0.95 } else { 0.5 })).unwrap();
            assert!((limit * 0.97..=limit).contains(&fine), "{limit}: {fine}");
        }
        assert_eq!(found(-1.0), 0.0);
        assert!(found(1e9) <= LOAD_MAX);
        assert_eq!(capacity(|_| Err("stuck")), Err("stuck"));
    }
}
