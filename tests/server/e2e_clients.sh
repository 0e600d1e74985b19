#!/usr/bin/env bash
# tests/server/e2e_clients.sh - OpenAI's own client, as npm has it, asks the real program. The package is installed
# below build, once for each lock file; without node, npm or a registry this is skipped aloud.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
from=tests/server/clients
folder=build/clients

skip() { # reason
    tap_skip the_openai_package_is_served "$1"
    tap_end
    exit
}
for tool in node npm; do
    command -v $tool >/dev/null || skip "$tool is not here (./run deps dev, on Debian)"
done
if ! cmp -s $from/package-lock.json $folder/installed.json; then
    mkdir -p $folder
    cp $from/package.json $from/package-lock.json $folder
    (cd $folder && npm ci --no-audit --no-fund --ignore-scripts) >$folder/install.log 2>&1 ||
        skip "npm could not install it: $(tail -n 3 $folder/install.log)"
    cp $from/package-lock.json $folder/installed.json
fi
node $from/openai_test.mjs "$sheaf" $folder
