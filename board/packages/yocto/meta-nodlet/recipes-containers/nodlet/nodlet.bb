SUMMARY = "Kubernetes Pods on boards too small for Kubernetes"
DESCRIPTION = "One program is kubelet, container runtime, pod supervisor and command line. It needs no network, no registry and no clock."
LICENSE = "0BSD & Apache-2.0 & BSD-3-Clause & ISC & MIT & MPL-2.0 & Unicode-3.0 & Zlib"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"
LIC_FILES_CHKSUM += "file://board/packages/licences/crates.txt;md5=c450dfbc000e138ef597f35023a67a69"
PV = "0.2.0"

# Crates with the checksums of Cargo.lock, which cargo verifies again. Those without a source are
# nodlet's own and lie in the checkout.
python () {
    import re

    lock = os.path.join(d.getVar('NODLET_SOURCE'), 'Cargo.lock')
    bb.parse.mark_dependency(d, lock)
    with open(lock) as file:
        packages = file.read().split('[[package]]')[1:]
    for package in packages:
        field = dict(re.findall(r'^(\w+) = "(.*)"$', package, re.MULTILINE))
        if 'source' not in field:
            continue
        crate = '%s-%s' % (field['name'], field['version'])
        d.appendVar('SRC_URI', ' crate://crates.io/%s/%s' % (field['name'], field['version']))
        d.setVarFlag('SRC_URI', crate + '.sha256sum', field['checksum'])
}

# The program names the commit of the checkout, if it has no changes. Sources without a repository of their own name
# their commit themselves.
python () {
    import subprocess

    source = d.getVar('NODLET_SOURCE')

    def git(*words):
        said = subprocess.run(('git', '-C', source) + words, env=dict(os.environ, TZ='UTC'), capture_output=True, text=True)
        return said.stdout.strip() if said.returncode == 0 else None

    try:
        top, changes = git('rev-parse', '--show-toplevel'), git('status', '--porcelain')
        date = '--date=format-local:%Y-%m-%dT%H:%M:%SZ'
        commit, day = git('log', '-1', '--format=%H'), git('log', '-1', '--format=%cd', date)
    except FileNotFoundError:
        return
    if top and os.path.realpath(top) == os.path.realpath(source) and changes == '':
        for name, value in (('NODLET_COMMIT', commit), ('NODLET_COMMIT_DATE', day)):
            d.setVar(name, value)
            d.setVarFlag(name, 'export', '1')
}

SRC_URI = ""

inherit cargo systemd update-rc.d useradd externalsrc

EXTERNALSRC = "${NODLET_SOURCE}"
EXTERNALSRC_BUILD = "${WORKDIR}/build"
# Nothing is written into the checkout.
EXTERNALSRC_SYMLINKS = ""

# --frozen is --locked and --offline.
CARGO_BUILD_FLAGS += "--package nodlet"

# libcontainer as it is published is wrong on 32-bit processors, and all builds have the same source.
# The crate in the vendored directory is patched, and its checksums of single files are dropped.
do_configure:append () {
	crate=${CARGO_VENDORING_DIRECTORY}/libcontainer-0.7.0
	if [ ! -e $crate/.nodlet-patched ]; then
		patch -d $crate -p1 < ${S}/xtask/patches/libcontainer-0.7.0.patch
		sed -i 's/"files": *{[^}]*}/"files":{}/' $crate/.cargo-checksum.json
		touch $crate/.nodlet-patched
	fi
}

do_install () {
	install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/nodlet ${D}${bindir}/nodlet
}

do_install:append:class-target () {
	install -d ${D}${sysconfdir}/nodlet/manifests
	if ${@bb.utils.contains('DISTRO_FEATURES', 'systemd', 'true', 'false', d)}; then
		install -D -m 0644 ${S}/board/systemd/nodlet.service ${D}${systemd_system_unitdir}/nodlet.service
		install -D -m 0644 ${S}/board/systemd/05-nodlet.network ${D}${nonarch_libdir}/systemd/network/05-nodlet.network
		install -D -m 0644 ${S}/board/systemd/80-nodlet-networkmanager.conf ${D}${nonarch_libdir}/NetworkManager/conf.d/80-nodlet.conf
	else
		install -D -m 0755 ${S}/board/packages/sysvinit/nodlet ${D}${INIT_D_DIR}/nodlet
	fi
}

SYSTEMD_SERVICE:${PN} = "nodlet.service"
INITSCRIPT_NAME = "nodlet"
INITSCRIPT_PARAMS = "defaults 90 10"

# Its members may use the API.
USERADD_PACKAGES = "${PN}"
GROUPADD_PARAM:${PN} = "--system nodlet"

FILES:${PN} += "${systemd_system_unitdir} ${nonarch_libdir}/systemd ${nonarch_libdir}/NetworkManager ${sysconfdir}/nodlet"

# What nodlet-image.bbclass loads images with.
BBCLASSEXTEND = "native"
