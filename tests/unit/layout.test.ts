// Holds the rule of the architecture page by reading import lines.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'

const files = globSync('{contract,lib,transport,server,engine,cli,scripts}/**/*.ts', { cwd: root })
const imports = files.flatMap((file) =>
  [...readFileSync(path.join(root, file), 'utf8').matchAll(/(?:from|import\()\s*'([^']+)'/g)].map(([, name]) => ({
    file,
    to: name!.startsWith('.') ? path.normalize(path.join(path.dirname(file), name!)) : name!,
  })),
)
const features = [
  'limits',
  'accounts',
  'hub',
  'datasets',
  'usage',
  'tuning',
  'inference',
  'deployments',
  'exports',
  'webhooks',
]
const folderOf = (file: string) => file.split('/')[1]!

function forbid(why: string, forbidden: (file: string, to: string) => boolean) {
  const found = imports.filter(({ file, to }) => forbidden(file, to)).map(({ file, to }) => `${file} imports ${to}`)
  assert.deepEqual(found, [], why)
}

test('the contract knows zod and itself only', () => {
  forbid('contract/', (file, to) => file.startsWith('contract/') && to !== 'zod' && !to.startsWith('contract/'))
})

test('what server and engine share knows nothing of either', () => {
  forbid('lib/', (file, to) => file.startsWith('lib/') && !/^(node:|lib\/)/.test(to))
})

test('what every listening process has knows the contract only', () => {
  forbid('transport/', (file, to) => file.startsWith('transport/') && !/^(node:|contract\/|transport\/)/.test(to))
})

test('the engine knows the contract but not the server, and only engine/llama knows the C library’s binding', () => {
  forbid('engine → server', (file, to) => file.startsWith('engine/') && to.startsWith('server/'))
  forbid('server → engine', (file, to) => file.startsWith('server/') && to.startsWith('engine/'))
  forbid('koffi', (file, to) => to === 'koffi' && !file.startsWith('engine/llama/'))
})

test('only main.ts, services.ts and app.ts know every feature; http, db and queue know none', () => {
  forbid(
    'rooms',
    (file, to) =>
      /^server\/(http|db|queue)\//.test(file) && features.some((feature) => to.startsWith(`server/${feature}/`)),
  )
})

test('nobody but its own feature touches a store, and routes call their own service only', () => {
  forbid('stores', (file, to) => /^server\/\w+\/store\.ts$/.test(to) && folderOf(file) !== folderOf(to))
  forbid(
    'routes',
    (file, to) =>
      /^server\/\w+\/routes\.ts$/.test(file) &&
      features.some((feature) => to.startsWith(`server/${feature}/`) && feature !== folderOf(file)),
  )
})

test('features call each other in one order, without a cycle', () => {
  forbid('order', (file, to) => {
    const [from, target] = [
      features.indexOf(folderOf(file)),
      features.indexOf(to.startsWith('server/') ? folderOf(to) : ''),
    ]
    return file.startsWith('server/') && file.split('/').length > 2 && from !== -1 && target > from
  })
})

test('no file is longer than 400 lines', () => {
  const long = globSync('{contract,lib,transport,server,engine,cli,scripts,trainer,examples,tests}/**/*.{ts,mjs,py}', {
    cwd: root,
  }).filter((file) => readFileSync(path.join(root, file), 'utf8').split('\n').length > 401)
  assert.deepEqual(long, [])
})
