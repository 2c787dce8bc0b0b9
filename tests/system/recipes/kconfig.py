"""Reads board/packages/buildroot/Config.in with kconfiglib, and checks for which targets nodlet can be
chosen, what that selects, and which other symbols there are then.

Buildroot is not here: the symbols of its own that Config.in uses are declared below, as Buildroot
declares them. `cargo xtask recipes buildroot` calls this.

Arguments: the directory with kconfiglib, the external tree, and a scratch directory.
"""

import os
import sys

kconfiglib, tree, scratch = sys.argv[1:]
sys.path.insert(0, kconfiglib)

from kconfiglib import COMMENT, Kconfig

# Without a prompt: of architecture, processor and toolchain, which other choices of Buildroot imply.
IMPLIED = ['BR2_aarch64', 'BR2_arm', 'BR2_ARM_CPU_ARMV7A', 'BR2_mips', 'BR2_riscv', 'BR2_RISCV_64', 'BR2_x86_64',
           'BR2_TOOLCHAIN_USES_GLIBC', 'BR2_TOOLCHAIN_USES_MUSL', 'BR2_PACKAGE_HOST_RUSTC_TARGET_ARCH_SUPPORTS',
           'BR2_PACKAGE_HOST_RUSTC']
NEW = ['BR2_PACKAGE_NODLET', 'BR2_PACKAGE_NODLET_IMAGES', 'BR2_PACKAGE_NODLET_MANIFESTS']


def read(*chosen):
    """The configuration of a Buildroot for which these symbols are true."""
    path = os.path.join(scratch, 'Config.in')
    with open(path, 'w') as file:
        for name in IMPLIED:
            file.write('config %s\n\tbool\n' % name)
            if name in chosen:
                file.write('\tdefault y\n')
        file.write('source "$BR2_EXTERNAL_NODLET_PATH/Config.in"\n')
    os.environ['BR2_EXTERNAL_NODLET_PATH'] = tree
    # A symbol that is declared by nobody is a mistake in one of them.
    kconf = Kconfig(path, warn_to_stderr=False)
    undefined = [name for name, symbol in kconf.syms.items() if name.startswith('BR2_') and not symbol.nodes]
    assert not undefined and not kconf.warnings, (undefined, kconf.warnings)
    return kconf


def comments(kconf):
    return [node.prompt[0] for node in kconf.node_iter() if node.item == COMMENT and node.prompt[1]
            and all_true(node)]


def all_true(node):
    from kconfiglib import expr_value
    return expr_value(node.dep) == 2


RUST = 'BR2_PACKAGE_HOST_RUSTC_TARGET_ARCH_SUPPORTS'
ARM = ('BR2_arm', 'BR2_ARM_CPU_ARMV7A', RUST)
for target, is_offered in [
        (('BR2_aarch64', 'BR2_TOOLCHAIN_USES_GLIBC', RUST), True),
        (('BR2_aarch64', 'BR2_TOOLCHAIN_USES_MUSL', RUST), True),
        (('BR2_x86_64', 'BR2_TOOLCHAIN_USES_GLIBC', RUST), True),
        (('BR2_riscv', 'BR2_RISCV_64', 'BR2_TOOLCHAIN_USES_GLIBC', RUST), True),
        (('BR2_riscv', 'BR2_TOOLCHAIN_USES_GLIBC', RUST), False),
        (ARM + ('BR2_TOOLCHAIN_USES_MUSL',), True),
        (ARM + ('BR2_TOOLCHAIN_USES_GLIBC',), False),
        # Of an older processor: images that are baked in are for this one.
        (('BR2_arm', 'BR2_TOOLCHAIN_USES_MUSL', RUST), False),
        (('BR2_mips', 'BR2_TOOLCHAIN_USES_GLIBC', RUST), False),
        (('BR2_aarch64', 'BR2_TOOLCHAIN_USES_GLIBC'), False)]:
    kconf = read(*target)
    symbols = [kconf.syms[name] for name in NEW]
    symbols[0].set_value('y')
    assert (symbols[0].str_value == 'y') == is_offered, (target, symbols[0].str_value)
    assert (kconf.syms['BR2_PACKAGE_HOST_RUSTC'].str_value == 'y') == is_offered, target
    for symbol in symbols[1:]:
        symbol.set_value('a b')
        assert (symbol.str_value == 'a b') == is_offered, (target, symbol)
    wants_musl = 'nodlet on 32-bit ARM needs a toolchain w/ musl' in comments(kconf)
    assert wants_musl == (target == ARM + ('BR2_TOOLCHAIN_USES_GLIBC',)), (target, comments(kconf))
print('Config.in: %s' % ' '.join(NEW))
