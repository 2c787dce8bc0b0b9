"""Parses board/packages/yocto/meta-nodlet with BitBake, fetches and unpacks its crates with
BitBake's fetcher, and writes the shell functions of the recipe and of the image class to files.

OpenEmbedded-Core is not here: its classes that the recipe inherits are empty, and the variables of
its configuration that the layer uses are set below. `cargo xtask recipes yocto` calls this.

Arguments: the directory with BitBake's module bb, the layer, a scratch directory, and a directory
with .crate files, which take the place of the network.
"""

import builtins
import os
import shutil
import sys
import types

bitbake, layer, scratch, crates = sys.argv[1:]
sys.path.insert(0, bitbake)
# Of BitBake's other packages, which its parser imports and does not use here.
for name in ('hashserv', 'hashserv.client', 'codegen'):
    sys.modules[name] = types.ModuleType(name)
sys.modules['hashserv'].client = sys.modules['hashserv.client']

import bb
import bb.data
import bb.data_smart
import bb.event
import bb.fetch2
import bb.parse
import bb.siggen
import bb.utils

builtins.bb = bb
builtins.os = os

CLASSES = {
    'base': '',
    'cargo': 'CARGO_BUILD_FLAGS = "-v --frozen --release --manifest-path=${S}/Cargo.toml"\n'
             'cargo_do_configure () {\n\t:\n}\nEXPORT_FUNCTIONS do_configure\n',
    'externalsrc': 'S = "${EXTERNALSRC}"\nB = "${EXTERNALSRC_BUILD}"\n',
    'native': '', 'systemd': '', 'update-rc.d': '', 'useradd': '',
}
VARIABLES = {
    'WORKDIR': scratch, 'TMPDIR': scratch, 'TOPDIR': scratch, 'T': scratch + '/temp', 'DL_DIR': scratch + '/dl',
    'D': '${WORKDIR}/image', 'IMAGE_ROOTFS': '${WORKDIR}/rootfs', 'PN': 'nodlet', 'BPN': 'nodlet',
    'bindir': '/usr/bin', 'sysconfdir': '/etc', 'nonarch_libdir': '/usr/lib',
    'systemd_system_unitdir': '/usr/lib/systemd/system', 'INIT_D_DIR': '/etc/init.d',
    'CARGO_TARGET_SUBDIR': os.uname().machine + '-unknown-linux-gnu/release', 'CARGO_VENDORING_DIRECTORY': '${WORKDIR}/cargo_home/bitbake',
    'SITEINFO_BITS': '64', 'TCLIBC': 'glibc', 'PATH': os.environ['PATH'], 'BB_NO_NETWORK': '1',
}


def configured():
    """What is set before a recipe is parsed: conf/layer.conf, and the variables above."""
    data = bb.data.init()
    bb.parse.siggen = bb.siggen.init(data)
    data.setVar('BBPATH', scratch)
    for name, value in VARIABLES.items():
        data.setVar(name, value)
    data.setVar('LAYERDIR', layer)
    data = bb.parse.handle(layer + '/conf/layer.conf', data, True)
    data.expandVarref('LAYERDIR')
    data.delVar('LAYERDIR')
    data.setVar('__bbclasstype', 'recipe')
    return data


def parsed(path, **variables):
    data = configured()
    for name, value in variables.items():
        data.setVar(name, value)
    return bb.parse.handle(path, data)['']


def write(name, data):
    with open('%s/%s.sh' % (scratch, name), 'w') as file:
        file.write(data.getVar(name))


os.makedirs(scratch + '/classes', exist_ok=True)
for name, text in CLASSES.items():
    with open('%s/classes/%s.bbclass' % (scratch, name), 'w') as file:
        file.write(text)

path = layer + '/recipes-containers/nodlet/nodlet.bb'
for systems, bits, libc in (('systemd', '64', 'glibc'), ('sysvinit', '32', 'musl')):
    recipe = parsed(path, OVERRIDES='class-target', DISTRO_FEATURES=systems, SITEINFO_BITS=bits, TCLIBC=libc)
    condition = 'if true' if systems == 'systemd' else 'if false'
    assert condition in recipe.getVar('do_install'), recipe.getVar('do_install')
    assert '--frozen' in recipe.getVar('CARGO_BUILD_FLAGS'), recipe.getVar('CARGO_BUILD_FLAGS')
native = parsed(path, OVERRIDES='class-native', DISTRO_FEATURES='systemd')
assert 'systemd' not in native.getVar('do_install'), 'the native recipe installs the program alone'

recipe = parsed(path, OVERRIDES='class-target', DISTRO_FEATURES='systemd')
# What the recipe exports; nothing in a checkout with changes.
with open(scratch + '/environment', 'w') as file:
    for name in ('NODLET_COMMIT', 'NODLET_COMMIT_DATE'):
        if recipe.getVarFlag(name, 'export'):
            file.write('%s=%s\n' % (name, recipe.getVar(name)))
with open(recipe.getVar('NODLET_SOURCE') + '/Cargo.lock') as file:
    locked = sum(line.startswith('checksum = ') for line in file)
urls = recipe.getVar('SRC_URI').split()
fetch = bb.fetch2.Fetch(urls, recipe)
sums = sum(bool(fetch.ud[url].sha256_expected) for url in fetch.urls)
assert len(fetch.urls) == locked == sums, 'Cargo.lock has %d crates, SRC_URI %d, %d with checksums' % (locked, len(fetch.urls), sums)
os.makedirs(scratch + '/dl', exist_ok=True)
for url in fetch.urls:
    name = fetch.ud[url].parm['downloadfilename']
    shutil.copy(os.path.join(crates, name), os.path.join(scratch, 'dl', name))
fetch.download()
fetch.unpack(scratch)
print('crates: %d' % len(os.listdir(scratch + '/cargo_home/bitbake')))
print('flags: ' + recipe.getVar('CARGO_BUILD_FLAGS'))
write('do_configure', recipe)
write('do_install', recipe)

with open(scratch + '/image.bb', 'w') as file:
    file.write('inherit nodlet-image\nNODLET_IMAGES = "%s/image.tar"\nNODLET_MANIFESTS = "%s/pod.yaml"\n' % (scratch, scratch))
for machine, platform in (('arm', 'linux/arm/v7'), ('riscv64', 'linux/riscv64'), ('x86_64', 'linux/amd64'), ('aarch64', 'linux/arm64')):
    image = parsed(scratch + '/image.bb', TARGET_ARCH=machine, OVERRIDES='class-target')
    assert image.getVar('NODLET_PLATFORM') == platform, image.getVar('NODLET_PLATFORM')
assert 'nodlet' in image.getVar('IMAGE_INSTALL').split()
assert 'nodlet_bake' in image.getVar('ROOTFS_POSTPROCESS_COMMAND').split()
write('nodlet_bake', image)
