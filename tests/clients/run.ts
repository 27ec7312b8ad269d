// `npm run test:clients`: third-party clients against the whole service with the default model. Options go to node's
// test runner: `npm run test:clients -- --test-name-pattern=tools`; `--python`, `--node` or `--tinker` runs one part.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'
import { startService } from '../../bench/support/service.ts'

const root = path.resolve(import.meta.dirname, '../..')
const model = 'HuggingFaceTB/SmolLM2-135M-Instruct'
const options = process.argv.slice(2)
const half = ['--python', '--node', '--tinker'].find((option) => options.includes(option))
const rest = options.filter((option) => option !== half)

for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(1))
/** A name that the cookbook knows, and the hub's catalogue does not. */
const known = 'Qwen/Qwen3-32B'
/** A model whose only upstream is down: nothing listens there. */
const absent = 'nobody/home'
const service = await startService({
  TUNERY_UPSTREAMS: JSON.stringify([{ model: absent, url: 'http://127.0.0.1:1', kind: 'openai' }]),
  TUNERY_WEBHOOK_ALLOW: '127.0.0.0/8',
  TUNERY_STORE_COMPLETIONS: '1',
  // The recipes of Tinker's cookbook know this name, and its control tokens are the packaged base's.
  TUNERY_MODEL_NAMES: `${known}=${model}`,
})
const env = {
  ...process.env,
  OPENAI_BASE_URL: service.url,
  OPENAI_API_KEY: service.key,
  CLIENTS_MODEL: model,
  CLIENTS_ABSENT_MODEL: absent,
  CLIENTS_EMBEDDING_MODEL: 'sentence-transformers/all-MiniLM-L6-v2',
  CLIENTS_SERVICE_PID: String(service.pid),
  // Disable the clients' telemetry.
  LANGSMITH_TRACING: 'false',
}
const tinkerEnv = {
  TINKER_BASE_URL: service.url.replace(/\/v1$/, ''),
  TINKER_API_KEY: `tml-${service.key}`,
  TINKER_TEST_MODEL: known,
  TINKER_TEST_TOKENIZER: path.join(root, '.local/models', model, 'hf'),
  HF_HUB_OFFLINE: '1',
}
const failed: string[] = []
function step(name: string, command: string, args: string[], own = {}) {
  console.log(`\n• ${name}`)
  if (spawnSync(command, args, { cwd: root, env: { ...env, ...own }, stdio: 'inherit' }).status !== 0) failed.push(name)
}

try {
  await service.api('POST', '/chat/completions', { model, messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 })
  if (half === undefined || half === '--python') {
    const pytest = path.join(root, '.local/peers/clients-python/bin/pytest')
    step('clients for Python', pytest, [
      '-q',
      '-rxX',
      '-c',
      'tests/clients/pytest.ini',
      'tests/clients',
      ...rest.filter((option) => !option.startsWith('--test-')),
    ])
  }
  if (half === undefined || half === '--tinker') {
    const python = path.join(root, '.local/peers/tinker/bin/python')
    const options = ['-m', 'pytest', '-q', '-rxX', '-p', 'no:xdist', '-c', 'tests/tinker/pytest.ini', 'tests/tinker']
    step("Tinker's SDK and cookbook", python, options, tinkerEnv)
  }
  if (half === undefined || half === '--node') {
    const files = globSync('tests/clients/*.test.ts', { cwd: root }).sort()
    step('clients for Node', process.execPath, [
      '--test',
      '--test-concurrency=1',
      '--test-reporter=spec',
      '--test-timeout=300000',
      ...rest,
      ...files,
    ])
  }
} finally {
  await service.stop()
}
if (failed.length > 0) console.error(`\n${failed.join(' and ')} failed`)
process.exit(failed.length > 0 ? 1 : 0)
