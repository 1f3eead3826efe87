//! Loads of roles in `/status.json`, and the role that limits its fleet.

use serde_json::{Value, json};

use crate::fleet::{Role, RoleLoad};
use crate::server::fleets::{Fleets, ServedFleet};

/// Digits of a saturation that are shown: more of them change with each look.
const STEPS: f64 = 1e4;

/// A role and its load.
#[derive(Clone, Copy, Debug)]
struct LoadedRole {
    role: Role,
    load: RoleLoad,
}

/// Load of each role of each fleet.
pub(super) fn loads(fleets: &Fleets) -> Value {
    let several = fleets.single().is_none();
    let of = |fleet: &ServedFleet| of_fleet(fleet, several);
    fleets.iter().flat_map(|fleet| of(fleet)).collect()
}

fn of_fleet(fleet: &ServedFleet, several: bool) -> Vec<Value> {
    let load_of = |role: &Role| Some(LoadedRole { role: *role, load: fleet.relay.fleet.role_load(*role)? });
    let loads: Vec<LoadedRole> = Role::ALL.iter().filter_map(load_of).collect();
    let limiting = limiting(&loads);
    let shown = loads.iter().map(|LoadedRole { role, load }| {
        let mut shown = json!({
            "role": role.name(),
            "engines": load.engines,
            "engines_needed": load.engines_needed,
            "saturation": rounded(load.saturation),
            "work_ms": rounded(load.work_s * 1e3),
            "limits": limiting == Some(*role),
        });
        if several {
            shown["fleet"] = Value::from(&*fleet.name);
        }
        shown
    });
    shown.collect()
}

/// The role with the largest load for its engines; None without load.
fn limiting(loads: &[LoadedRole]) -> Option<Role> {
    let most = loads.iter().max_by(|a, b| a.load.saturation.total_cmp(&b.load.saturation))?;
    (most.load.saturation > 0.0).then_some(most.role)
}

fn rounded(value: f64) -> f64 {
    (value * STEPS).round() / STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_with_the_largest_saturation_limits() {
        let loaded =
            |role, saturation| LoadedRole { role, load: RoleLoad { saturation, ..RoleLoad::default() } };
        let of = |prefill, decode| limiting(&[loaded(Role::Prefill, prefill), loaded(Role::Decode, decode)]);
        assert_eq!((of(0.4, 0.3), of(0.2, 1.3)), (Some(Role::Prefill), Some(Role::Decode)));
        assert_eq!((of(0.0, 0.0), limiting(&[])), (None, None));
    }
}
