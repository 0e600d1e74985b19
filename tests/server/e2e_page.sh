#!/usr/bin/env bash
# tests/server/e2e_page.sh - the page at "/" in a browser without a screen, on the real program. Keeps a screenshot
# at build/page.png.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
# shellcheck source=tests/server/serve.sh
. tests/server/serve.sh
needs the_page_works_in_a_browser "./run deps dev, on Debian" node chromium

key=a-key-for-this-test
serve open
open=$url
serve locked --api-key $key
node tests/server/page/page_test.mjs chromium "$open/" "$url/" $key build/page.png
