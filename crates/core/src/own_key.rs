//! A plugin that makes a key for logins at each start, instead of using the pool's.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Such a plugin, started without static credentials. Keys are named by their fingerprints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnKey {
    /// The key that the plugin got.
    pub pool_key: String,
    /// The key that the plugin gave back.
    pub plugin_key: String,
    pub cause: OwnKeyCause,
}

/// The reason why the plugin has no static credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnKeyCause {
    /// The operator has set `static_credentials = false`.
    ByOperator,
    /// Static credentials need `user`, which is not set.
    NoUser,
    /// The plugin did not start with them.
    Refused { message: String },
    /// The plugin was started with them, and gave a key of its own nevertheless.
    Ignored,
    /// Instances of a start with them denied the pool's key.
    Denied,
    /// The keeper is about to start it with them.
    Pending,
}

impl OwnKey {
    /// The operator's remedy.
    pub fn remedy(&self) -> &'static str {
        match self.cause {
            OwnKeyCause::ByOperator => {
                "set `static_credentials = true`, or remove the line: Greenroom then tries it by default"
            }
            OwnKeyCause::NoUser => {
                "set `user` to the account that logs in, and `static_credentials = true`: with `user`, Greenroom also tries \
                 it by default"
            }
            OwnKeyCause::Refused { .. } => {
                "correct what the plugin refuses, or use a version that accepts `static_credentials = true`"
            }
            OwnKeyCause::Ignored => {
                "use a version of the plugin that accepts `static_credentials = true`, or the pool's key in another way"
            }
            OwnKeyCause::Denied => {
                "install the pool's key in the image, and set `static_credentials = true`; the plugin does not install it"
            }
            OwnKeyCause::Pending => {
                "none is needed; `static_credentials = true` gives the plugin the pool's key from its first start on"
            }
        }
    }
}

impl fmt::Display for OwnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool_key, plugin_key, cause } = self;
        write!(
            f,
            "the plugin gives the key {plugin_key} for logins instead of the pool's, {pool_key}: it makes a key at each start, \
             and instances that boot while it starts again may deny every login; "
        )?;
        match cause {
            OwnKeyCause::ByOperator => f.write_str("`static_credentials = false` allows that"),
            OwnKeyCause::NoUser => f.write_str("`static_credentials` would prevent that, but needs `user`"),
            OwnKeyCause::Refused { message } => {
                write!(f, "it did not start with `static_credentials = true` ({message})")
            }
            OwnKeyCause::Ignored => f.write_str("it does so in spite of `static_credentials = true`"),
            OwnKeyCause::Denied => f.write_str(
                "its instances denied the pool's key after a start with `static_credentials = true`",
            ),
            OwnKeyCause::Pending => f.write_str("it is started again with `static_credentials = true`"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One of each cause.
    pub(crate) fn each() -> Vec<OwnKey> {
        let message = "not supported".to_owned();
        [
            OwnKeyCause::ByOperator,
            OwnKeyCause::NoUser,
            OwnKeyCause::Refused { message },
            OwnKeyCause::Ignored,
            OwnKeyCause::Denied,
            OwnKeyCause::Pending,
        ]
        .into_iter()
        .map(|cause| OwnKey {
            pool_key: "SHA256:pool".to_owned(),
            plugin_key: "SHA256:own".to_owned(),
            cause,
        })
        .collect()
    }

    #[test]
    fn each_cause_names_both_keys_and_has_a_remedy() {
        for own in each() {
            let sentence = own.to_string();
            assert!(sentence.contains("SHA256:own") && sentence.contains("SHA256:pool"), "{sentence}");
            assert!(sentence.contains("`static_credentials"), "{sentence}");
            assert!(
                own.remedy().contains("`static_credentials = true`") || own.cause == OwnKeyCause::ByOperator
            );
            let json = serde_json::to_string(&own).unwrap();
            assert_eq!(serde_json::from_str::<OwnKey>(&json).unwrap(), own);
        }
    }
}
