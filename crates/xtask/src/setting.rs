//! The options of a run and the equipment of this machine, which decide the steps of the run.

use regex_lite::Regex;

use crate::step::{Need, Step};

/// The options of a run, and the parts of this machine as `scripts/test` has found them.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    pub is_full: bool,
    /// Parts of the machine that are missing.
    pub missing: Vec<Need>,
    /// Languages whose linters are installed.
    pub languages: Vec<String>,
}

impl Setting {
    /// True if the machine has what the step needs, and the run is one that has the step.
    pub fn allows(&self, step: &Step) -> bool {
        let is_run = if step.lane.is_full() { self.is_full } else { !(self.is_full && step.not_in_full) };
        let is_missing = |need: &Need| match need {
            Need::Linters => self.languages.is_empty(),
            need => self.missing.contains(need),
        };
        is_run && !step.needs.iter().any(is_missing)
    }

    /// The steps whose names match, and that this machine can run.
    pub fn wanted<'a>(
        &self,
        steps: &'a [Step],
        only: Option<&Regex>,
    ) -> Result<Vec<&'a Step>, SelectionError> {
        let is_wanted = |step: &&Step| only.is_none_or(|only| only.is_match(step.name));
        let matching: Vec<&Step> = steps.iter().filter(is_wanted).collect();
        let possible: Vec<&Step> = matching.iter().copied().filter(|step| self.allows(step)).collect();
        match only {
            Some(only) if matching.is_empty() => Err(SelectionError::NoStep(only.clone())),
            Some(only) if possible.is_empty() => Err(SelectionError::NotHere(only.clone())),
            _ => Ok(possible),
        }
    }
}

/// The reasons for which no step can be run.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    #[error("no step matches `{0}`")]
    NoStep(Regex),
    #[error("each step that matches `{0}` needs something that is missing here, or `--full`")]
    NotHere(Regex),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Lane;
    use crate::steps::STEPS;

    #[test]
    fn a_step_is_left_out_where_the_machine_lacks_something() {
        let containers = Step::program("containers", Lane::Hosts, &["true"]).needs(&[Need::Containers]);
        let lint = Step::lint("lint", Lane::First);
        let full = Step::program("kills", Lane::Kills, &["true"]);
        let quick = Step::program("ten jobs", Lane::Clouds, &["true"]).not_in_full();
        let nothing = Setting { missing: vec![Need::Containers], ..Setting::default() };
        assert!(!nothing.allows(&containers) && !nothing.allows(&lint) && !nothing.allows(&full));
        assert!(nothing.allows(&quick));
        let setting = Setting { is_full: true, languages: vec!["shell".to_owned()], ..Setting::default() };
        assert!(setting.allows(&containers) && setting.allows(&lint) && setting.allows(&full));
        assert!(!setting.allows(&quick));
    }

    #[test]
    fn only_selects_the_steps_whose_names_match() {
        let setting = Setting { languages: vec!["shell".to_owned()], ..Setting::default() };
        let names = |only: &str| {
            let wanted = setting.wanted(STEPS, Some(&Regex::new(only).unwrap()));
            wanted.map(|steps| steps.iter().map(|step| step.name).collect::<Vec<_>>())
        };
        assert_eq!(
            names("format|shell and Python|house rules").unwrap(),
            ["format", "shell and Python", "house rules"]
        );
        assert_eq!(names("^simulation$").unwrap(), ["simulation"]);
        let error = names("nothing of that name").unwrap_err().to_string();
        assert_eq!(error, "no step matches `nothing of that name`");
        assert!(names("seeded bugs").unwrap_err().to_string().contains("or `--full`"));
    }
}
