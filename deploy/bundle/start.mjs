// Serves the model in this folder: `node start.mjs [options of engine/main.ts]`. Settings come from the environment,
// then from settings.env. Plain JavaScript, so that an old Node can run the version check.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import * as util from 'node:util'

const nodeMin = 24
const here = path.dirname(fileURLToPath(import.meta.url))
const fail = (message) => {
  console.error(message)
  process.exit(1)
}

if (Number(process.versions.node.split('.')[0]) < nodeMin)
  fail(
    `This needs Node ${nodeMin} or newer, and ${process.execPath} is ${process.versions.node}. ` +
      "Install a newer one (nodejs.org), or build the image in this folder: 'docker build'; README.md says how.",
  )
process.chdir(here)
if (!existsSync('node_modules/koffi'))
  fail(`The packages are missing. Run 'npm ci --omit=dev --ignore-scripts' in ${here} first.`)

const settings = {
  TUNERY_HOST: '127.0.0.1',
  TUNERY_PORT: '8000',
  TUNERY_ENGINE_OPTIONS: '',
  ...(existsSync('settings.env') && filled(util.parseEnv(readFileSync('settings.env', 'utf8')))),
  ...filled(process.env),
}
const known = ['HOST', 'PORT', 'THREADS', 'GRACE_SECONDS', 'ENGINE_KEY', 'ENGINE_KEY_FILE', 'ENGINE_OPTIONS'].map(
  (name) => `TUNERY_${name}`,
)
const unknown = Object.keys(settings).filter((name) => name.startsWith('TUNERY_') && !known.includes(name))
if (unknown.length > 0) fail(`There is no setting ${unknown.join(', ')}. Settings are ${known.join(', ')}.`)

const { model, projector, adapters } = JSON.parse(readFileSync('bundle.json', 'utf8'))
const libraries = 'node_modules/@node-llama-cpp'
const hasVision = (name) => existsSync(path.join(libraries, name, 'bins', name, 'libmtmd.so'))
if (projector && !(existsSync(libraries) && readdirSync(libraries).some(hasVision)))
  fail(`The library for pictures is missing. Run 'node vision/build.mjs' in ${here} first; it needs g++.`)
const named = ({ name, file }) => `${name}=${path.join(here, file)}`
const optional = (option, value) => (value === undefined ? [] : [option, value])
const host = settings.TUNERY_HOST
process.argv.splice(
  2,
  0,
  ...['--listen', `${host.includes(':') ? `[${host}]` : host}:${settings.TUNERY_PORT}`],
  ...['--model', named(model)],
  ...optional('--projector', projector && path.join(here, projector.file)),
  ...adapters.flatMap((adapter) => ['--adapter', named(adapter)]),
  ...optional('--threads', settings.TUNERY_THREADS),
  ...optional('--grace-seconds', settings.TUNERY_GRACE_SECONDS),
  ...optional('--api-key-file', settings.TUNERY_ENGINE_KEY_FILE),
  ...settings.TUNERY_ENGINE_OPTIONS.split(/\s+/).filter(Boolean),
)
if (settings.TUNERY_ENGINE_KEY !== undefined) process.env.TUNERY_ENGINE_KEY = settings.TUNERY_ENGINE_KEY
else delete process.env.TUNERY_ENGINE_KEY
// Those of traces are the engine's own.
for (const [name, value] of Object.entries(settings)) if (name.startsWith('OTEL_')) process.env[name] = value
await import('./engine/main.ts')

/** Drops empty values, except keys: the server must refuse an empty key instead of serving without one. */
function filled(values) {
  return Object.fromEntries(
    Object.entries(values).filter(([name, value]) => value !== '' || name.startsWith('TUNERY_ENGINE_KEY')),
  )
}
