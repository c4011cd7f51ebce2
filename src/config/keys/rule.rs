//! The keys of a rule.

use greenroom_keys::Applies::Job;
use greenroom_keys::Takes::{Flag, Globs, Text};
use greenroom_keys::Unset::{Required, Words};
use greenroom_keys::{KeyTable, key};

pub(in crate::config) const RULE: KeyTable = KeyTable {
    header: "[[rule]]",
    about: "Each entry assigns jobs to a pool. The first rule that matches decides; every key of a rule must \
            match; a rule without conditions matches every job, so it comes last. Only GitLab's own data about a \
            job counts, never a variable.\n\nA pattern covers the whole name: `*` matches any characters but `/`, \
            `**` any characters, `?` one character. A list matches if one of its patterns does.\n\n`project`, \
            `namespace` and `protected` are facts. Users who may push a branch choose `ref`, `job` and `image`: \
            these keys route jobs, they do not protect a pool.",
    keys: &[
        key("project", Globs, Words("any project"), Job).means("Full path of the project."),
        key("namespace", Globs, Words("any namespace"), Job).means("Path of the project without its last part."),
        key("ref", Globs, Words("any ref"), Job).means("Branch or tag of the job."),
        key("protected", Flag, Words("both"), Job)
            .means("Whether GitLab says that the branch or tag is protected.")
            .interacts("A ref that GitLab does not call protected counts as `false`."),
        key("job", Globs, Words("any job"), Job).means("Name of the job."),
        key("image", Globs, Words("any image"), Job)
            .means("Name after `image:` in `.gitlab-ci.yml`; `\"\"` stands for a job without an image.")
            .interacts(
                "As soon as one rule has this key, a job with an image that no rule matches fails, even with a \
                 `default_pool`.",
            ),
        key("pool", Text, Required, Job).means("Name of the pool for the jobs that match."),
    ],
};
