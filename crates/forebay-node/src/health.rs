//! The reasons for which a node is not fit for new jobs, for a scheduler that asks.

use forebay_base::Result;
use serde::{Deserialize, Serialize};

use crate::manifest;
use crate::node::Node;
use crate::records::{Actual, Instance, Mode, Want};
use crate::swap::SwapState;

/// The kind of trouble, for callers that decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ailment {
    /// Nothing can be made in one of the node's pools.
    PoolFault,
    /// Swap could not be taken out of use: it may hold memory of programs of the next job.
    SwapLeftOn,
    /// More than `manifest-max` bytes are not home.
    OverManifest,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    pub what: Ailment,
    pub text: String,
}

impl Node {
    /// All troubles of this node, other than a drain that an operator asked for.
    pub fn troubles(&self) -> Result<Vec<Trouble>> {
        let mut troubles = Vec::new();
        for pool in &self.config.pools {
            let fault = self.pools.fault(&pool.name);
            troubles.extend(fault.map(|why| Trouble {
                what: Ailment::PoolFault,
                text: format!("pool {} cannot be used: {why}", pool.name),
            }));
        }
        for instance in self.local.instances()? {
            let told = self.told(&instance)?;
            let wanted = self.desk().instance(&instance.id).ok();
            let leaves = wanted.is_none_or(|wanted| wanted.want != Want::Here);
            if instance.mode == Mode::Swap && leaves && self.is_on(&instance) {
                troubles.extend(left_on(&instance, told.as_ref()));
            }
        }
        if let Some(max) = self.config.manifest_max {
            let over = manifest::over(&self.book, &self.config.name, max)?;
            troubles.extend(over.map(|text| Trouble { what: Ailment::OverManifest, text }));
        }
        Ok(troubles)
    }

    /// Whether the instance's swap is on, as far as its pool knows; an unusable pool is reported
    /// anyway.
    fn is_on(&self, instance: &Instance) -> bool {
        let state = self.pool_of(instance).and_then(|pool| pool.swap_state(instance));
        matches!(state, Ok(SwapState::On(_)))
    }
}

/// Reports swap that is still on though its instance goes: not while it is being taken out of use for
/// the first time.
fn left_on(instance: &Instance, told: Option<&Actual>) -> Option<Trouble> {
    let why = told?.why.as_ref()?;
    let text = format!("swap of {} is left on: {why}", instance.id);
    Some(Trouble { what: Ailment::SwapLeftOn, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Life, Owner, State};

    #[test]
    fn swap_that_could_not_be_taken_out_of_use_is_told() {
        let instance = Instance {
            id: "s".into(),
            mode: Mode::Swap,
            owner: Owner { uid: 0, gid: 0 },
            life: Life::Named { expires: None },
            nodes: vec!["n1".into()],
            pool: "p".into(),
            capacity: 1,
            bytes: 1,
            mountpoint: None,
            backing: None,
            space: None,
            created: 0,
            want: Want::Gone,
        };
        let why = Some("no memory".into());
        let told = Actual { state: State::Leaving, why, ..Actual::default() };
        let trouble = left_on(&instance, Some(&told)).unwrap();
        assert_eq!(trouble.text, "swap of s is left on: no memory");
        assert_eq!(
            left_on(&instance, Some(&Actual { why: None, ..told })),
            None,
            "it is under way"
        );
    }
}
