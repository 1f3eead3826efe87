//! Facts about connectors' keys, one row per range of versions. The rows were checked against keys
//! made by the connectors themselves.

mod rows;

use super::groups::GroupHash;
use super::ranks::{AskRule, KvShape, RankRule};
use super::refuse::Refusal;
use crate::kvhash::release::{Release, Stage};

/// Names of presets that have another one now. vllm-ascend's `ascend_store/v1` of later releases
/// writes other keys than the connector of 0.10 did.
const RENAMED: [(&str, &str); 1] = [("ascend-store-v1", "ascend-legacy-0.10")];

/// Connectors that write keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// The AscendStore of vllm-ascend.
    AscendStore,
    /// vllm-ascend's MooncakeConnectorStoreV1 (0.10, 0.11).
    AscendStoreV1,
    /// The upstream connector MooncakeStoreConnector.
    MooncakeStore,
    /// Unified cache management; a preset per store.
    Ucm,
    /// LMCache inside the engine.
    LmcacheEngine,
    /// LMCache's multi-process server.
    LmcacheMp,
}

/// Ways in which layers share objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One object holds all layers of a rank.
    #[default]
    Whole,
    /// One object per layer.
    Layers,
    /// MemCache's layer-wise keys: all layers at known offsets of one object.
    Gva,
    /// Layer-wise Mooncake of vllm-ascend 0.30: as GVA, with a namespace and a stage.
    Shared,
}

/// By what context parallelism multiplies the tokens of a key's block, or of what is loaded
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScale {
    /// They are not scaled.
    One,
    /// By the size of decode context parallelism.
    Dcp,
    /// pcp x dcp.
    PcpDcp,
}

/// One row of facts. Templates are in the language of [`Template`](super::template::Template).
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name in configurations.
    pub name: &'static str,
    /// Connector that writes the keys.
    pub connector: Connector,
    /// First version of the range.
    pub since: Release,
    /// Last version of the range.
    pub until: Release,
    /// A build without a version number that behaves like this.
    pub build: Option<&'static str>,
    /// Template of [`Layout::Whole`].
    pub whole: &'static str,
    /// Template of [`Layout::Layers`].
    pub layers: Option<&'static str>,
    /// Template of [`Layout::Gva`].
    pub gva: Option<&'static str>,
    /// Template of [`Layout::Shared`].
    pub shared: Option<&'static str>,
    /// The ranks that write.
    pub ranks: RankRule,
    /// The keys that the engine's lookup asks for.
    pub asks: AskRule,
    /// Way in which coarse blocks are hashed.
    pub group_hash: GroupHash,
    /// True if a `cN` family multiplies its block size by N.
    pub family_scales: bool,
    /// Factor by which context parallelism scales blocks.
    pub scale: BlockScale,
    /// Number of blocks that engines store and load together, or not at all.
    pub unit: BlockScale,
    /// True if `peer_tp` is looked at.
    pub peer_tp: bool,
    /// True if `cache_prefix` and `store_tp` exist.
    pub prefix: bool,
    /// True if `store_tp` exists.
    pub store_tp: bool,
    /// Keys longer than this, or with other characters, are rewritten on Yuanrong.
    pub yuanrong_max_chars: Option<usize>,
    /// Layer ids count over all stages.
    pub global_layers: bool,
    /// A prompt of exactly k blocks hits k - 1, because a hit must leave a token in whole blocks.
    pub leaves_a_block: bool,
    /// Bytes of a hash, unless the configuration says otherwise.
    pub hash_bytes: usize,
}

impl BlockScale {
    /// The factor for engines of a shape.
    pub(super) fn factor(self, shape: &KvShape) -> u64 {
        match self {
            Self::One => 1,
            Self::Dcp => u64::from(shape.dcp),
            Self::PcpDcp => u64::from(shape.pcp) * u64::from(shape.dcp),
        }
    }
}

impl Connector {
    /// The name in configurations and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AscendStore => "AscendStore",
            Self::AscendStoreV1 => "MooncakeConnectorStoreV1",
            Self::MooncakeStore => "MooncakeStoreConnector",
            Self::Ucm => "UCM",
            Self::LmcacheEngine => "LMCache",
            Self::LmcacheMp => "LMCache MP",
        }
    }
}

impl Layout {
    /// The name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "plain",
            Self::Layers => "layer-wise",
            Self::Gva => "GVA",
            Self::Shared => "shared layer-wise",
        }
    }
}

impl Preset {
    /// All rows there are.
    #[must_use]
    pub fn all() -> &'static [&'static Self] {
        &rows::ALL
    }

    /// The preset of this name.
    ///
    /// # Errors
    /// [`Refusal::UnknownPreset`], and [`Refusal::UnpublishedFormat`] for stores whose keys are not
    /// public.
    pub fn named(name: &str) -> Result<&'static Self, Refusal> {
        match name {
            "ucm-yuanrong" => return Err(Refusal::UnpublishedFormat("UCM's Yuanrong pipeline")),
            "ucm-dram" => return Err(Refusal::UnpublishedFormat("UCM's Dram pipeline")),
            _ => {}
        }
        let name = RENAMED.iter().find(|(old, _)| *old == name).map_or(name, |(_, new)| *new);
        let found = Self::all().iter().find(|p| p.name == name);
        found.copied().ok_or_else(|| Refusal::UnknownPreset(name.to_owned()))
    }

    /// The preset of this version of a connector; for UCM and LMCache the first of those that fit.
    ///
    /// # Errors
    /// [`Refusal::UnreadableVersion`]; [`Refusal::UnseenVersion`] before the first row and in gaps
    /// nobody looked into.
    pub fn of_version(connector: Connector, version: &str) -> Result<&'static Self, Refusal> {
        let mut rows = Self::all().iter().copied().filter(|p| p.connector == connector);
        if let Some(row) = rows.clone().find(|p| p.build == Some(version)) {
            return Ok(row);
        }
        // Between releases, nobody knows on which side of a change of keys a build is.
        let number = Release::parse(version)
            .filter(|release| release.stage() != Stage::Other)
            .ok_or_else(|| Refusal::UnreadableVersion(version.to_owned()))?;
        rows.find(|p| p.since <= number && number <= p.until).ok_or_else(|| Refusal::UnseenVersion {
            connector: connector.name(),
            version: version.to_owned(),
        })
    }

    /// The template of a layout.
    ///
    /// # Errors
    /// [`Refusal::NoSuchLayout`].
    pub fn template(&self, layout: Layout) -> Result<&'static str, Refusal> {
        let text = match layout {
            Layout::Whole => Some(self.whole),
            Layout::Layers => self.layers,
            Layout::Gva => self.gva,
            Layout::Shared => self.shared,
        };
        text.ok_or(Refusal::NoSuchLayout { preset: self.name, layout: layout.name() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::template::Template;
    use super::*;

    fn name(connector: Connector, version: &str) -> Result<&'static str, Refusal> {
        Preset::of_version(connector, version).map(|p| p.name)
    }

    #[test]
    fn every_template_of_every_row_is_well_formed_and_names_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for row in Preset::all() {
            assert!(names.insert(row.name), "{} twice", row.name);
            assert!(row.since <= row.until, "{}", row.name);
            for text in [Some(row.whole), row.layers, row.gva, row.shared].into_iter().flatten() {
                assert!(Template::parse(text).is_ok(), "{}: {text}", row.name);
            }
            assert_eq!(Preset::named(row.name).unwrap().name, row.name);
        }
        assert!(names.len() >= 25);
    }

    #[test]
    fn versions_find_their_row() {
        let ascend = |v| name(Connector::AscendStore, v).unwrap();
        assert_eq!(ascend("0.13.0"), "ascend-0.13");
        assert_eq!(ascend("0.17.0rc1"), "ascend-0.14");
        assert_eq!(ascend("0.22.1rc1"), "ascend-0.21");
        assert_eq!(ascend("0.26.0rc1"), "ascend-0.26");
        assert_eq!(ascend("main-2026-08"), "ascend-main-2026-08");
        assert_eq!(ascend("0.31.0"), "ascend-0.30");
        assert_eq!(ascend("0.23.0.post1"), "ascend-0.23");
        assert_eq!(name(Connector::MooncakeStore, "0.29.1"), Ok("mooncake-store-0.24"));
        assert_eq!(name(Connector::AscendStoreV1, "0.11.0"), Ok("ascend-legacy-0.10"));
        assert_eq!(Preset::named("ascend-store-v1").map(|p| p.name), Ok("ascend-legacy-0.10"));
    }

    #[test]
    fn versions_nobody_looked_at_are_refused() {
        let unseen = |connector: Connector, version: &str| {
            let error = name(connector, version).unwrap_err();
            assert_eq!(
                error,
                Refusal::UnseenVersion { connector: connector.name(), version: version.into() }
            );
        };
        unseen(Connector::AscendStore, "0.27.1rc1");
        unseen(Connector::AscendStore, "0.30.0rc1");
        unseen(Connector::AscendStore, "0.12.0");
        unseen(Connector::MooncakeStore, "0.20.2");
        for version in ["latest", "0.26.1rc1.dev3+g1234abc", "0.26.0.1"] {
            let refusal = Refusal::UnreadableVersion(version.into());
            assert_eq!(name(Connector::AscendStore, version), Err(refusal));
        }
    }

    #[test]
    fn unknown_and_unpublished_presets_are_refused() {
        let refusal = |name| Preset::named(name).map(|p| p.name).unwrap_err();
        assert_eq!(refusal("ascend"), Refusal::UnknownPreset("ascend".into()));
        assert!(matches!(refusal("ucm-yuanrong"), Refusal::UnpublishedFormat(_)));
        assert!(matches!(refusal("ucm-dram"), Refusal::UnpublishedFormat(_)));
        let preset = Preset::named("ascend-0.13").unwrap();
        let none = Refusal::NoSuchLayout { preset: "ascend-0.13", layout: "GVA" };
        assert_eq!(preset.template(Layout::Gva), Err(none));
    }
}
