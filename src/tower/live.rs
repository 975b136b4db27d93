//! The rules in force: a limiter for each, all or nothing over those that a request falls under.

use super::builder::{MissingKey, Options};
use super::head::{Keyed, RequestHead};
use super::headers::Told;
use super::layer::Shared;
use super::settle::{Charge, SettleFn, Spent};
use crate::rules::{KeyPart, Matches, RequestPath, RouteRule, RuleSet, RulesError};
use crate::{Algorithm, Decision, Limiter, Policy, Rule, Tier};
use http::HeaderValue;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

/// The rules in force.
pub(super) struct Live {
    pub(super) set: RuleSet,
    gates: Vec<RuleGate>,
}

/// A rule's limiter, and what responses say of the rule.
struct RuleGate {
    limiter: Arc<Limiter>,
    policy: PolicyText,
    tiers: Box<[(Box<str>, PolicyText)]>,
    settle: Option<Arc<SettleFn>>,
}

/// A policy as responses have it.
#[derive(Default)]
struct PolicyText {
    text: Option<String>,
    value: Option<HeaderValue>,
}

pub(super) enum Verdict {
    /// Nothing to tell if it falls under no rule, or only under rules that watch.
    Pass(Option<Told>, Vec<Charge>),
    Refuse(Decision, Told),
    NoKey,
}

/// What responses tell of a decision.
#[inline]
fn told(shared: &Shared, decision: &Decision, policy: Option<HeaderValue>) -> Told {
    let style = shared.options.style;
    let wall_ns = style.tells_the_time().then(|| shared.wall_ns(decision.at_ns()));
    style.told(decision, policy, wall_ns)
}

/// One rule's part in a request.
struct Ask<'a> {
    index: usize,
    rule: &'a RouteRule,
    gate: &'a RuleGate,
    key: u64,
    cost: u64,
    tier: Option<Tier<'a>>,
}

impl Ask<'_> {
    #[inline]
    fn acquire(&self) -> Decision {
        match &self.tier {
            None => self.gate.limiter.try_acquire_n(&self.key, self.cost),
            Some(tier) => tier.try_acquire_n(&self.key, self.cost),
        }
    }

    fn peek(&self) -> Decision {
        match &self.tier {
            None => self.gate.limiter.peek_n(&self.key, self.cost),
            Some(tier) => tier.peek_n(&self.key, self.cost),
        }
    }

    /// Gives back what this decision has taken, and nothing that others have taken since.
    #[cold]
    fn hand_back(&self, decision: &Decision) {
        let tier = self.tier.as_ref().map(Tier::name);
        let spent = Spent::by(decision, self.gate.limiter.clock.now_ns());
        self.gate.limiter.undo(self.key, tier, self.cost, &spent);
    }

    fn policy(&self) -> &PolicyText {
        let known = self.tier.and_then(|tier| {
            self.gate.tiers.iter().find(|(name, _)| **name == *tier.name()).map(|(_, policy)| policy)
        });
        known.unwrap_or(&self.gate.policy)
    }

    #[cold]
    fn charge(&self, shared: &Arc<Shared>, decision: &Decision) -> Option<Charge> {
        let settle = Arc::clone(self.gate.settle.as_ref()?);
        let limiter = Arc::clone(&self.gate.limiter);
        let tier = self.tier.map(|tier| Cow::Owned(tier.name().to_owned()));
        let (shared, spent) = (Arc::clone(shared), Spent::by(decision, limiter.clock.now_ns()));
        Some(Charge { shared, limiter, key: self.key, spent, tier, settle })
    }
}

impl Live {
    /// Decides on a request, and spends for it if it passes.
    pub(super) fn decide(&self, shared: &Arc<Shared>, head: &RequestHead<'_>) -> Verdict {
        let path = RequestPath::new(head.path());
        let mut matches = self.set.matches_path(head.method.as_str(), &path);
        let Some(first) = matches.next_index() else { return Verdict::Pass(None, Vec::new()) };
        let options = &shared.options;
        let tier = options.tier.as_ref().and_then(|tier| tier(head));
        let cost = options.cost.as_ref().map_or(1, |cost| cost(head));
        let asker = Asker { live: self, shared, head, path: &path, tier: tier.as_deref(), cost };
        match asker.ask(first) {
            Err(NoKey::Refuse) => Verdict::NoKey,
            Ok(ask) if matches.is_empty() => {
                let decision = ask.acquire();
                let charges = match &ask.gate.settle {
                    Some(_) if decision.is_allowed() => ask.charge(shared, &decision).into_iter().collect(),
                    _ => Vec::new(),
                };
                if ask.rule.is_shadow() && decision.is_allowed() {
                    return Verdict::Pass(None, charges);
                }
                let told = told(shared, &decision, ask.policy().value.clone());
                match decision.is_allowed() {
                    true => Verdict::Pass(Some(told), charges),
                    false => Verdict::Refuse(decision, told),
                }
            }
            first => asker.several(first.ok(), matches),
        }
    }
}

/// Why a rule does not ask.
enum NoKey {
    Skip,
    Refuse,
}

/// A request in front of the rules.
struct Asker<'a> {
    live: &'a Live,
    shared: &'a Arc<Shared>,
    head: &'a RequestHead<'a>,
    path: &'a RequestPath<'a>,
    tier: Option<&'a str>,
    cost: u64,
}

impl<'a> Asker<'a> {
    fn ask(&self, index: usize) -> Result<Ask<'a>, NoKey> {
        let (rule, gate) = (&self.live.set.rules()[index], &self.live.gates[index]);
        let request = Keyed { head: self.head, path: self.path, custom: &self.shared.options.custom };
        let mut hasher = self.shared.hasher.build_hasher();
        let has_key = rule.key_of().write(&request, rule.matching().paths(), &mut hasher);
        let key = match has_key {
            true => hasher.finish(),
            false => self.key_of_nobody(rule)?,
        };
        let tier = self.tier.and_then(|name| gate.limiter.tier(name));
        Ok(Ask { index, rule, gate, key, cost: self.cost.saturating_mul(rule.cost_of()), tier })
    }

    #[cold]
    fn key_of_nobody(&self, rule: &RouteRule) -> Result<u64, NoKey> {
        self.shared.warn_of_missing_key(rule.name());
        match self.shared.options.missing {
            MissingKey::Share => Ok(self.shared.nobody),
            MissingKey::Allow => Err(NoKey::Skip),
            // A rule that watches refuses nobody.
            MissingKey::Deny if rule.is_shadow() => Err(NoKey::Skip),
            MissingKey::Deny => Err(NoKey::Refuse),
        }
    }

    /// All or nothing: a look at all rules first, then each is charged in turn, and a late refusal (somebody else was
    /// quicker) hands back what the earlier ones took.
    fn several(&self, first: Option<Ask<'a>>, mut rest: Matches<'_>) -> Verdict {
        let mut asks = Vec::with_capacity(rest.len() + 1);
        let mut has_skipped = first.is_none();
        asks.extend(first);
        while let Some(index) = rest.next_index() {
            match self.ask(index) {
                Ok(ask) => asks.push(ask),
                Err(NoKey::Skip) => has_skipped = true,
                Err(NoKey::Refuse) => return Verdict::NoKey,
            }
        }
        if has_skipped && self.ask_otherwise(&mut asks).is_err() {
            return Verdict::NoKey;
        }
        let peeks = asks.iter().map(|ask| (ask, ask.peek())).filter(|(_, decision)| decision.is_denied());
        // The one that takes longest, by the wait it names: whoever names none takes for ever.
        let longest =
            peeks.max_by_key(|(_, decision)| (decision.retry_after().is_none(), decision.retry_after()));
        let told = |decision: &Decision| told(self.shared, decision, self.policies(&asks));
        if let Some((ask, _)) = longest {
            // Decided for good: if it fits after all, the others have to be asked again.
            let decision = ask.acquire();
            if decision.is_denied() {
                return Verdict::Refuse(decision, told(&decision));
            }
            ask.hand_back(&decision);
        }
        let mut taken: Vec<Decision> = Vec::with_capacity(asks.len());
        for ask in &asks {
            let decision = ask.acquire();
            if decision.is_denied() {
                asks.iter().zip(&taken).for_each(|(ask, taken)| ask.hand_back(taken));
                return Verdict::Refuse(decision, told(&decision));
            }
            taken.push(decision);
        }
        let telling = asks.iter().zip(&taken).filter(|(ask, _)| !ask.rule.is_shadow());
        let binding = telling.map(|(_, decision)| decision).min_by_key(|decision| decision.remaining());
        let charges = asks.iter().zip(&taken).filter_map(|(ask, decision)| ask.charge(self.shared, decision));
        let charges = charges.collect();
        Verdict::Pass(binding.map(told), charges)
    }

    /// A rule that does not apply, for want of a key, must not keep those for otherwise away: nobody would ask.
    #[cold]
    fn ask_otherwise(&self, asks: &mut Vec<Ask<'a>>) -> Result<(), NoKey> {
        let asked: Vec<usize> = asks.iter().map(|ask| ask.index).collect();
        let method = self.head.method.as_str();
        for index in self.live.set.otherwise(method, self.path, |index| asked.contains(&index)) {
            match self.ask(index) {
                // A path that can be read in several ways may have had it before.
                Ok(_) if asked.contains(&index) => {}
                Ok(ask) => asks.push(ask),
                Err(NoKey::Skip) => {}
                Err(NoKey::Refuse) => return Err(NoKey::Refuse),
            }
        }
        Ok(())
    }

    /// What responses say of all rules together.
    fn policies(&self, asks: &[Ask<'_>]) -> Option<HeaderValue> {
        let mut texts = asks.iter().map(Ask::policy).filter(|policy| policy.text.is_some());
        let first = texts.next()?;
        let mut joined = String::new();
        for policy in texts {
            if joined.is_empty() {
                joined.push_str(first.text.as_deref()?);
            }
            joined.push_str(", ");
            joined.push_str(policy.text.as_deref()?);
        }
        if joined.is_empty() { first.value.clone() } else { HeaderValue::try_from(joined).ok() }
    }
}

/// Rules that are ready to be in force.
pub(super) struct Change {
    pub(super) live: Live,
    /// Limiters that go on under other limits, and are to be [amended](Limiter::amend) once the rules are in force.
    pub(super) amended: Vec<Arc<Limiter>>,
    /// The rules that were there before and have to begin anew.
    pub(super) begun_anew: Vec<Box<str>>,
}

impl Change {
    fn begin_anew(&mut self, options: &Options, index: usize) -> Result<(), RulesError> {
        let rule = &self.live.set.rules()[index];
        self.live.gates[index].limiter = Arc::new(new_limiter(options, rule)?);
        self.begun_anew.push(rule.name().into());
        Ok(())
    }

    /// Puts other limits in force on limiters that have been at work. One that has had too many of them begins anew.
    fn adopt(&mut self, options: &Options, kept: &[usize]) -> Result<(), RulesError> {
        for &index in kept {
            let (rule, limiter) = (&self.live.set.rules()[index], &self.live.gates[index].limiter);
            match adopt(limiter, rule) {
                Ok(false) => {}
                Ok(true) => self.amended.push(Arc::clone(limiter)),
                Err(_) => self.begin_anew(options, index)?,
            }
        }
        Ok(())
    }
}

impl Live {
    /// The program's own rules and those of a file, where there were none before.
    pub(super) fn new(options: &Options, file: &RuleSet) -> Result<Self, RulesError> {
        let set = joined(&options.own, file)?;
        check(options, &set)?;
        let gate = |rule| Ok(RuleGate::new(options, rule, Arc::new(new_limiter(options, rule)?)));
        let gates = set.rules().iter().map(gate).collect::<Result<_, RulesError>>()?;
        Ok(Self { set, gates })
    }

    /// The program's own rules and those of another file. Limiters of rules that are in force are kept with all that
    /// was spent, if name, key and room are the same; only their limits change, and those at once: all else that can
    /// fail or takes time was done before, or is left for [`Change::amended`].
    ///
    /// Nothing changes on an error.
    pub(super) fn changed_to(&self, options: &Options, file: &RuleSet) -> Result<Change, RulesError> {
        let set = joined(&options.own, file)?;
        check(options, &set)?;
        let (mut kept, mut begun_anew) = (Vec::new(), Vec::new());
        let mut gates = Vec::with_capacity(set.rules().len());
        for (index, rule) in set.rules().iter().enumerate() {
            let limiter = match self.limiter_for(rule) {
                Some(limiter) => {
                    kept.push(index);
                    Arc::clone(limiter)
                }
                None => {
                    let is_known = self.limiter(rule.name()).is_some();
                    begun_anew.extend(is_known.then(|| rule.name().into()));
                    Arc::new(new_limiter(options, rule)?)
                }
            };
            gates.push(RuleGate::new(options, rule, limiter));
        }
        let mut change = Change { live: Self { set, gates }, amended: Vec::new(), begun_anew };
        // Last, for this is seen at once.
        if let Err(error) = change.adopt(options, &kept) {
            self.set.rules().iter().zip(&self.gates).for_each(|(rule, gate)| {
                // It was in force a moment ago.
                if let Ok(true) = adopt(&gate.limiter, rule) {
                    gate.limiter.amend();
                }
            });
            return Err(error);
        }
        Ok(change)
    }

    fn limiter_for(&self, rule: &RouteRule) -> Option<&Arc<Limiter>> {
        let index = self.set.rules().iter().position(|known| known.name() == rule.name())?;
        self.set.rules()[index].shares_state_with(rule).then(|| &self.gates[index].limiter)
    }

    pub(super) fn limiter(&self, rule: &str) -> Option<&Arc<Limiter>> {
        let index = self.set.rules().iter().position(|known| known.name() == rule)?;
        Some(&self.gates[index].limiter)
    }
}

impl RuleGate {
    fn new(options: &Options, rule: &RouteRule, limiter: Arc<Limiter>) -> Self {
        let text = |policy: &Policy| {
            let is_bytes = options.byte_rules.iter().any(|name| **name == *rule.name());
            let text = options.style.policy(policy, is_bytes);
            let value = text.as_deref().and_then(|text| HeaderValue::from_str(text).ok());
            PolicyText { text, value }
        };
        let settle = options.settle.iter().find(|(name, _)| **name == *rule.name());
        Self {
            limiter,
            policy: rule.limit().map(text).unwrap_or_default(),
            tiers: rule.tiers().map(|(name, policy)| (name.into(), text(policy))).collect(),
            settle: settle.map(|(_, settle)| Arc::clone(settle)),
        }
    }
}

fn joined(own: &RuleSet, file: &RuleSet) -> Result<RuleSet, RulesError> {
    let mut set = RuleSet::new(own.rules().iter().chain(file.rules()).cloned())?;
    for exclusion in own.exclusions().iter().chain(file.exclusions()) {
        set = set.excluding(exclusion.clone());
    }
    Ok(set)
}

fn check(options: &Options, set: &RuleSet) -> Result<(), RulesError> {
    let unknown = set.custom_keys().find(|key| options.custom.iter().all(|custom| *custom.name != **key));
    if let Some(key) = unknown {
        let part = KeyPart::Custom(key.into());
        return Err(RulesError::new(format!(
            "the key `{part}` is not known: give the layer `key_by(\"{key}\", …)`"
        )));
    }
    for (name, _) in &options.settle {
        if set.rules().iter().all(|rule| rule.name() != &**name) {
            return Err(RulesError::new(format!(
                "the program settles the charges of rule `{name}`, which is not among the rules"
            )));
        }
    }
    let mut limits = HashMap::new();
    for rule in set.rules() {
        for policy in rule.limit().into_iter().chain(rule.tiers().map(|(_, policy)| policy)) {
            let mut of_policy = HashSet::new();
            for name in policy.rules().iter().filter_map(Rule::name) {
                // Tiers are alternatives, which may well have the names of each other.
                let other = *limits.entry(name).or_insert(rule.name());
                if other != rule.name() || !of_policy.insert(name) {
                    return Err(RulesError::new(format!(
                        "rule `{}`: there are two limits of the name `{name}`, which clients could not tell apart",
                        rule.name()
                    )));
                }
            }
        }
        let policies = rule.limit().into_iter().chain(rule.tiers().map(|(_, policy)| policy));
        if policies.flat_map(Policy::rules).any(|limit| limit.algorithm() == Algorithm::InFlight) {
            return Err(RulesError::new(format!(
                "rule `{}`: a limit of so many `at once` needs to know when a request ends, which a layer does not; \
                 use `Limiter::try_start` in the handler",
                rule.name()
            )));
        }
    }
    Ok(())
}

fn new_limiter(options: &Options, rule: &RouteRule) -> Result<Limiter, RulesError> {
    let mut builder = rule.limiter().named(rule.name()).count_decisions(options.count_decisions);
    #[cfg(feature = "tracing")]
    {
        builder = builder.trace_refusals(options.trace_one_in);
    }
    if let Some(clock) = &options.clock {
        builder = builder.clock(clock.clone());
    }
    builder.build().map_err(|error| RulesError::new(format!("rule `{}`: {error}", rule.name())))
}

/// Puts a rule's limits in force on a limiter that has been at work; whether they are others than before. The
/// limiter's table is still to be [amended](Limiter::amend) then.
fn adopt(limiter: &Limiter, rule: &RouteRule) -> Result<bool, crate::Error> {
    let mut has_changed = false;
    if let Some(policy) = rule.limit().ok().filter(|policy| *policy != limiter.policy()) {
        limiter.put_policy(0, policy)?;
        has_changed = true;
    }
    for (name, policy) in rule.tiers() {
        if let Some(tier) = limiter.tier(name).filter(|tier| policy != tier.policy()) {
            tier.put_policy(policy)?;
            has_changed = true;
        }
    }
    Ok(has_changed)
}
