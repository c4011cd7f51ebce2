//! The kernel modules that a machine needs before it can read its disk, in their order.

use std::collections::BTreeMap;

/// The content of `modules.dep` and `modules.builtin` of one kernel.
#[derive(Debug)]
pub(super) struct Modules {
    /// From a module's name to its file and to those that it needs, files relative to the kernel's folder.
    by_name: BTreeMap<String, Entry>,
    built_in: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    file: String,
    needs: Vec<String>,
}

impl Modules {
    pub(super) fn read(dep: &str, builtin: &str) -> Self {
        let entries = dep.lines().filter_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            Some((name_of(file), Entry { file: file.to_owned(), needs }))
        });
        Self { by_name: entries.collect(), built_in: builtin.lines().map(name_of).collect() }
    }

    /// The files of these modules, each after those that it needs; built-in modules have no file. The error is the
    /// name of a module that this kernel does not have.
    pub(super) fn in_order(&self, names: &[&str]) -> Result<Vec<&str>, String> {
        let mut order = Vec::new();
        for name in names {
            self.add(&name.replace('-', "_"), &mut order)?;
        }
        Ok(order)
    }

    fn add<'a>(&'a self, name: &str, order: &mut Vec<&'a str>) -> Result<(), String> {
        let Some(entry) = self.by_name.get(name) else {
            let is_there = self.built_in.iter().any(|built_in| built_in == name);
            return if is_there { Ok(()) } else { Err(name.to_owned()) };
        };
        if order.contains(&entry.file.as_str()) {
            return Ok(());
        }
        // The list is complete; the module that must come first stands last in it.
        for needed in entry.needs.iter().rev() {
            if let Some(needed) =
                self.by_name.get(&name_of(needed)).filter(|n| !order.contains(&n.file.as_str()))
            {
                order.push(&needed.file);
            }
        }
        order.push(&entry.file);
        Ok(())
    }
}

/// `kernel/drivers/virtio/virtio-rng.ko.xz` is `virtio_rng`, as the kernel calls it.
fn name_of(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko: kernel/drivers/virtio/virtio.ko
kernel/net/core/failover.ko:
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko \
kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio_ring.ko kernel/drivers/virtio/virtio.ko
";

    #[test]
    fn each_module_comes_once_and_after_those_that_it_needs() {
        let modules = Modules::read(DEP, "kernel/fs/ext4/ext4.ko\n");
        let order = modules.in_order(&["virtio_net", "ext4", "virtio-rng"]).unwrap();
        let names: Vec<String> = order.iter().map(|file| name_of(file)).collect();
        assert_eq!(names, ["virtio", "virtio_ring", "failover", "net_failover", "virtio_net", "virtio_rng"]);
    }

    #[test]
    fn a_module_that_the_kernel_lacks_is_named() {
        let modules = Modules::read(DEP, "");
        assert_eq!(modules.in_order(&["virtio_net", "ext4"]), Err("ext4".to_owned()));
    }
}
