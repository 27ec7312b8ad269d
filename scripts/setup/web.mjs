// Builds the dashboard, and installs the browser that its tests use.
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { ask, run, SetupError } from './process.mjs'
import { local, root, step } from './state.mjs'

/** All that the build reads. */
const sources = [
  ...['web', 'sdk', 'contract', 'examples/ticket-triage.jsonl', 'package-lock.json'],
  // The pages of the docs; see web/docs-plugin/.
  ...['docs', 'server/README.md', 'engine/README.md', 'SECURITY.md', 'CONTRIBUTING.md', 'CHANGELOG.md'],
]

/** A hash of the names and bytes of the sources. */
function sourceHash() {
  const hash = createHash('sha256')
  for (const source of sources) {
    const from = path.join(root, source)
    const names = existsSync(from) ? namesIn(from) : []
    for (const name of names)
      hash
        .update(`${source}/${name}\0`)
        .update(readFileSync(path.join(from, name)))
        .update('\0')
  }
  return hash.digest('hex')
}

/** The files of a folder, sorted; of a file, itself. */
function namesIn(from) {
  try {
    return readdirSync(from, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => path.relative(from, path.join(entry.parentPath ?? entry.path, entry.name)))
      .filter((name) => /\.(tsx?|css|html|js|json|svg|png|webp|md)$/.test(name) && !name.startsWith('dist/'))
      .sort()
  } catch (error) {
    if (error.code === 'ENOTDIR') return ['']
    throw error
  }
}

export const web = (options) =>
  step('web', 'the dashboard', [sourceHash()], [local('web/index.html')], options, async () => {
    const fresh = local('web.new')
    // Vite needs Node 20.19 or newer; set-up has installed another where the machine's own is older than 24.
    const node = existsSync(local('node/bin/node')) ? local('node/bin/node') : process.execPath
    await run(node, ['node_modules/vite/bin/vite.js', 'build', 'web', '--logLevel', 'warn'], {
      cwd: root,
      env: { TUNERY_WEB_OUT: fresh, NODE_ENV: 'production' },
      what: 'building the dashboard',
      hint: 'Run `npm run setup -- --force` if node_modules may be incomplete.',
    })
    // A running server finds the old files or the new ones.
    const old = local('web.old')
    rmSync(old, { recursive: true, force: true })
    if (existsSync(local('web'))) renameSync(local('web'), old)
    renameSync(fresh, local('web'))
    rmSync(old, { recursive: true, force: true })
  })

const chromiumFiles = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
const chromiumHint = 'Install it with your package manager (Debian: `apt-get install chromium`), or set CHROMIUM=/path.'

/** Debian's Chromium, for the browser tests: installed where this is allowed. */
export async function chromium({ plan } = {}) {
  if (plan || process.env.CHROMIUM || chromiumFiles.some((file) => existsSync(file))) return false
  if (process.getuid?.() !== 0 || ask('apt-get', ['--version']) === undefined)
    throw new SetupError('Chromium, which the browser tests use, is not installed.', chromiumHint)
  console.log('• Chromium (250 MB)')
  const env = { DEBIAN_FRONTEND: 'noninteractive' }
  const how = { env, hint: chromiumHint }
  await run('apt-get', ['update'], { ...how, what: 'apt-get update' })
  await run('apt-get', ['install', '--yes', '--no-install-recommends', 'chromium'], {
    ...how,
    what: 'apt-get install chromium',
  })
  return true
}

/** The same for `npm test`, which says in a line that it continues without. */
export async function chromiumIfPossible(options) {
  try {
    return await chromium(options)
  } catch (error) {
    if (!(error instanceof SetupError)) throw error
    console.log(`• browser tests are skipped: ${error.message.split('\n')[0]} ${chromiumHint}`)
    return false
  }
}
