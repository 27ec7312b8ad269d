// Set-up: does nothing the second time, and explains failures with advice.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { allowed } from '../support/allowed-time.ts'

test('without changes, set-up takes under 2 s and prints nothing', () => {
  const started = performance.now()
  const { status, stdout, stderr } = spawnSync('npm', ['run', '--silent', 'setup'], { cwd: root, encoding: 'utf8' })
  assert.equal(status, 0, stderr)
  assert.equal(stdout, '')
  assert.ok(performance.now() - started < allowed(2000))
})

/** Runs set-up on a copy of its files, with only these programs on the PATH. */
function freshSetup(programs: Record<string, string>, env: Record<string, string> = {}, args: string[] = []) {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-setup-'))
  const bin = path.join(folder, 'bin')
  mkdirSync(bin)
  for (const [name, target] of Object.entries(programs)) {
    if (target.startsWith('#!')) writeFileSync(path.join(bin, name), target, { mode: 0o755 })
    else symlinkSync(target, path.join(bin, name))
  }
  cpSync(path.join(root, 'scripts'), path.join(folder, 'scripts'), { recursive: true })
  cpSync(path.join(root, 'trainer'), path.join(folder, 'trainer'), { recursive: true })
  for (const file of ['package.json', 'package-lock.json', '.npmrc'])
    cpSync(path.join(root, file), path.join(folder, file))
  const result = spawnSync(process.execPath, [path.join(folder, 'scripts/setup.mjs'), ...args], {
    cwd: folder,
    env: { PATH: bin, HOME: folder, ...env },
    encoding: 'utf8',
  })
  rmSync(folder, { recursive: true, force: true })
  return result
}

const tool = '#!/bin/sh\necho version 3\n'
const python = '#!/bin/sh\necho 3.12\n'

test('without network, set-up says that a registry could not be reached and what to do', () => {
  const npm =
    '#!/bin/sh\nif [ "$1" = --version ]; then echo 11; exit 0; fi\necho "npm error code ENOTFOUND" >&2\nexit 1\n'
  const { status, stderr } = freshSetup({ npm, git: tool, python3: python })
  assert.equal(status, 1)
  assert.match(stderr, /npm ci failed/)
  assert.match(stderr, /registry could not be reached.*run the same command again/s)
})

test('missing programs are reported before any download, with how to install them', () => {
  const cases: [Record<string, string>, RegExp, string[]?][] = [
    [{ git: tool, python3: python }, /npm was not found.*apt-get install npm/s],
    [{ npm: tool, python3: python }, /git was not found.*apt-get install git/s],
    [{ npm: tool, git: tool }, /no Python between 3\.11 and 3\.14.*TUNERY_PYTHON/s],
    [{ npm: tool, git: tool, python3: '#!/bin/sh\necho 3.9\n' }, /python3 is 3\.9/],
    [
      { npm: tool, git: tool, python3: '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\necho 3.12\n' },
      /python3 has no venv module.*apt-get install python3 python3-venv/s,
    ],
    [
      { npm: tool, git: tool, python3: python },
      /g\+\+ was not found.*apt-get install g\+\+.*--with vision/s,
      ['--with', 'vision'],
    ],
  ]
  for (const [programs, says, args] of cases) {
    const { status, stdout, stderr } = freshSetup(programs, {}, args)
    assert.equal(status, 1)
    assert.match(stderr, says)
    assert.equal(stdout, '', 'no step has started')
  }
})

test('a package with another hash than the pinned one is refused', () => {
  const npm = `#!/bin/sh
case "$1" in
  --version) echo 11 ;;
  ci) /bin/mkdir -p node_modules && echo > node_modules/.package-lock.json ;;
  pack) echo forged > "$4/package.tgz" ;;
esac
`
  const { status, stderr } = freshSetup({ npm, git: tool, python3: python })
  assert.equal(status, 1)
  assert.match(stderr, /not the file that was pinned/)
})

test('--only checks just the programs of its steps, and refuses an unknown step', () => {
  const npm =
    '#!/bin/sh\nif [ "$1" = --version ]; then echo 11; exit 0; fi\n' +
    '/bin/mkdir -p node_modules && echo > node_modules/.package-lock.json\n'
  const { status, stdout, stderr } = freshSetup({ npm }, {}, ['--only', 'npm'])
  assert.deepEqual([status, stderr], [0, ''])
  assert.match(stdout, /^• npm packages\n.*\nSet-up finished/)
  assert.match(freshSetup({ npm }, {}, ['--only', 'npm,pyhton']).stderr, /no step 'pyhton'.*npm, node, engine/s)
})
