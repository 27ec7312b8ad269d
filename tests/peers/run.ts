// `npm run test:peers`: the service in front of a real vLLM and llama-server, which set-up installs, and its exports in
// both. Options go to node's test runner; with file names, runs only these tests.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')
const words = process.argv.slice(2)
const named = words.filter((word) => word.endsWith('.test.ts'))
const files = named.length > 0 ? named : globSync('tests/peers/*.test.ts', { cwd: root }).sort()
const options = words.filter((word) => !named.includes(word))
const args = ['--test', '--test-concurrency=1', '--test-reporter=spec', '--test-timeout=900000', ...options, ...files]
process.exit(spawnSync(process.execPath, args, { cwd: root, stdio: 'inherit' }).status ?? 1)
