// `npm run test:attacks [-- NAME…]`: what strangers tried against the service and once succeeded at, a file a line of
// attack. Each attack runs against real processes and must be refused, bounded or survived.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')
const names = process.argv.slice(2)
const files = globSync('tests/attacks/*.attack.ts', { cwd: root })
  .filter((file) => names.length === 0 || names.includes(path.basename(file, '.attack.ts')))
  .sort()
if (files.length === 0) {
  console.error(`No attack is named ${names.join(' or ')}.`)
  process.exit(2)
}
// One after the other: attacks measure how long others wait.
const options = ['--test', '--test-concurrency=1', '--test-force-exit', '--test-reporter=spec', '--test-timeout=900000']
const { status } = spawnSync(process.execPath, [...options, ...files], { cwd: root, stdio: 'inherit' })
process.exit(status ?? 1)
