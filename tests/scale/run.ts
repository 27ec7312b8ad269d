// `npm run test:scale`: what takes several servers, or other people's: Postgres, Redis, S3, Ray, Helm. One file at a
// time; names of files run these alone.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')
const named = process.argv.slice(2)
const files =
  named.length > 0 ? named : globSync(['tests/scale/*.test.ts', 'tests/process/helm.test.ts'], { cwd: root }).sort()
const { status } = spawnSync(
  process.execPath,
  ['--test', '--test-concurrency=1', '--test-force-exit', '--test-reporter=spec', ...files],
  { cwd: root, stdio: 'inherit', env: { ...process.env, TEST_FULL: '1' } },
)
process.exit(status ?? 1)
