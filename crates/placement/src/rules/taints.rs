//! Taints of hosts and tolerations of pods (core/v1 `Toleration.ToleratesTaint`).

use std::fmt;

use k8s_openapi::api::core::v1;

use super::field_path::{FieldPath, InvalidField, validate_label_key, validate_label_value};
use super::symbols::{EMPTY_SYMBOL, Symbol, Symbols};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// The scheduler does not place pods on the host if they do not tolerate the taint.
    NoSchedule,
    /// The scheduler prefers other hosts for pods that do not tolerate the taint.
    PreferNoSchedule,
    /// As `NoSchedule`; in addition, pods on the host that do not tolerate the taint are evicted.
    NoExecute,
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        })
    }
}

impl TaintEffect {
    fn read(path: &FieldPath<'_>, text: &str) -> Result<Self, InvalidField> {
        let all = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];
        all.into_iter().find(|effect| effect.to_string() == text).ok_or_else(|| {
            path.invalid_field(text, "must be one of NoSchedule, PreferNoSchedule, NoExecute")
        })
    }

    /// Returns true if the effect excludes pods that do not tolerate the taint.
    pub(super) const fn excludes_pods(self) -> bool {
        matches!(self, Self::NoSchedule | Self::NoExecute)
    }
}

/// A taint of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Taint {
    pub(super) key: Symbol,
    pub(super) value: Symbol,
    pub(super) effect: TaintEffect,
}

impl Taint {
    pub(super) fn read(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        taint: &v1::Taint,
    ) -> Result<Self, InvalidField> {
        validate_label_key(&path.field("key"), &taint.key)?;
        let value = taint.value.as_deref().unwrap_or_default();
        validate_label_value(&path.field("value"), value)?;
        let effect = TaintEffect::read(&path.field("effect"), &taint.effect)?;
        Ok(Self { key: symbols.intern(&taint.key), value: symbols.intern(value), effect })
    }
}

/// A toleration. Fields that are `None` are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Toleration {
    key: Option<Symbol>,
    value: Option<Symbol>,
    effect: Option<TaintEffect>,
}

/// All tolerations of a pod, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tolerations(Box<[Toleration]>);

impl Tolerations {
    pub(super) fn read(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        tolerations: &[v1::Toleration],
    ) -> Result<Self, InvalidField> {
        let mut all = Vec::with_capacity(tolerations.len());
        for (at, one) in tolerations.iter().enumerate() {
            all.push(Toleration::read(symbols, &path.item(at), one)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(Self(all.into()))
    }

    fn tolerates(&self, taint: Taint) -> bool {
        self.0.iter().any(|one| {
            one.key.is_none_or(|key| key == taint.key)
                && one.value.is_none_or(|value| value == taint.value)
                && one.effect.is_none_or(|effect| effect == taint.effect)
        })
    }

    /// Returns the first taint that excludes a pod with these tolerations; `None` if there is none.
    pub(super) fn first_untolerated(&self, taints: &[Taint]) -> Option<Taint> {
        taints.iter().copied().find(|taint| taint.effect.excludes_pods() && !self.tolerates(*taint))
    }

    /// Returns the number of `PreferNoSchedule` taints that these tolerations do not tolerate.
    pub(super) fn count_untolerated_prefer_no_schedule(&self, taints: &[Taint]) -> u32 {
        let is_untolerated =
            |taint: &&Taint| !taint.effect.excludes_pods() && !self.tolerates(**taint);
        u32::try_from(taints.iter().filter(is_untolerated).count()).unwrap_or(u32::MAX)
    }

    /// Returns true if the tolerations cover the taint `node.kubernetes.io/unschedulable`: a pod with these tolerations
    /// may be placed on a cordoned host (`Filter` of the plugin NodeUnschedulable).
    pub(super) fn tolerates_unschedulable(&self, symbols: &mut Symbols) -> bool {
        let key = symbols.intern("node.kubernetes.io/unschedulable");
        self.tolerates(Taint { key, value: EMPTY_SYMBOL, effect: TaintEffect::NoSchedule })
    }
}

impl Toleration {
    fn read(
        symbols: &mut Symbols,
        path: &FieldPath<'_>,
        toleration: &v1::Toleration,
    ) -> Result<Self, InvalidField> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let [key, operator, value] =
            [&toleration.key, &toleration.operator, &toleration.value].map(text);
        let effect = match toleration.effect.as_deref() {
            None | Some("") => None,
            Some(effect) => Some(TaintEffect::read(&path.field("effect"), effect)?),
        };
        let exists = match operator.as_str() {
            "Exists" => true,
            "" | "Equal" => false,
            // The operators Gt and Lt require the feature gate TaintTolerationComparisonOperators, which is off in
            // 1.36.
            other => {
                return Err(path.field("operator").invalid_field(other, "must be Exists or Equal"));
            }
        };
        let value_path = path.field("value");
        if exists && !value.is_empty() {
            return Err(value_path.invalid_field(value, "must be empty with operator Exists"));
        }
        validate_label_value(&value_path, &value)?;
        if key.is_empty() {
            if !exists {
                let problem = "must not be empty, except with operator Exists";
                return Err(path.field("key").invalid_field(key, problem));
            }
        } else {
            validate_label_key(&path.field("key"), &key)?;
        }
        Ok(Self {
            key: (!key.is_empty()).then(|| symbols.intern(&key)),
            value: (!exists).then(|| symbols.intern(&value)),
            effect,
        })
    }
}
