// `npm run test:peers`: the service in front of a real vLLM and a real llama-server, which set-up brings for these tests.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')
const files = globSync('tests/peers/*.test.ts', { cwd: root }).sort()
const args = ['--test', '--test-concurrency=1', '--test-reporter=spec', '--test-timeout=600000', ...process.argv.slice(2), ...files]
process.exit(spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' }).status ?? 1)
