// Holds the tables of rooms in docs/architecture.md by reading import lines.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { engineFolders } from '../../lib/engine-folders.ts'
import { root } from '../../lib/root.ts'

interface Room {
  prefix: string
  mayImport: string[]
}

/** The rows of the tables under "## Rooms", each with the paths that it may import besides its own. */
function readRooms(): Room[] {
  const page = readFileSync(path.join(root, 'docs/architecture.md'), 'utf8')
  const section = /\n## Rooms\n([\s\S]*?)\n## /.exec(page)![1]!
  return section.split(/\n### /).flatMap((table) => {
    const above: string[] = []
    return [...table.matchAll(/^\| `([^`]+)` \|.*\| ([^|]+) \|$/gm)].map(([, prefix, cell]) => {
      const named = [...cell!.matchAll(/`([^`]+)`/g)].map(([, each]) => each!)
      assert.match(cell!, /^(nothing|(`[^`]+`|all above)(, (`[^`]+`|all above))*)$/, `the row of ${prefix}`)
      const mayImport = [...named, ...(cell!.includes('all above') ? above : [])]
      above.push(prefix!)
      return { prefix: prefix!, mayImport }
    })
  })
}

const rooms = readRooms()
/** The row with the longest matching path. */
const roomOf = (file: string) =>
  rooms
    .filter(({ prefix }) => file.startsWith(prefix))
    .toSorted((a, b) => b.prefix.length - a.prefix.length)
    .at(0)

const python = globSync('trainer/*/**/*.py', { cwd: root, exclude: ['trainer/tests/**'] })
const typescript = globSync(
  ['{contract,lib,pictures,telemetry,sdk,mcp,server,engine,cli}/**/*.ts', 'web/**/*.{ts,tsx}'],
  { cwd: root },
)
const files = [...typescript, ...python]
const imports = typescript.flatMap((file) =>
  [...readFileSync(path.join(root, file), 'utf8').matchAll(/(?:from|import\()\s*'([^']+)'/g)].map(([, name]) => ({
    file,
    to: name!.startsWith('.') ? path.normalize(path.join(path.dirname(file), name!)) : name!,
  })),
)
/** Imports of the Python package, also those inside functions. */
const pythonImports = python.flatMap((file) =>
  [...readFileSync(path.join(root, file), 'utf8').matchAll(/^\s*(?:from|import) (trainer\.[\w.]+|\.\S*)/gm)].map(
    ([, name]) => ({ file, to: name!.startsWith('.') ? name! : `${name!.replaceAll('.', '/')}/` }),
  ),
)
const isOurs = (to: string) => files.includes(to)

function forbid(why: string, forbidden: (file: string, to: string) => boolean) {
  const lines = imports.filter(({ file, to }) => forbidden(file, to)).map(({ file, to }) => `${file} imports ${to}`)
  assert.deepEqual(lines, [], why)
}

test('every file of the program has a room in docs/architecture.md, and every room has files', () => {
  assert.deepEqual(
    files.filter((file) => !roomOf(file)),
    [],
  )
  assert.deepEqual(
    rooms.filter(({ prefix }) => !files.some((file) => file.startsWith(prefix))),
    [],
  )
})

test('every folder has its own row, but the pages of the dashboard', () => {
  const withoutRow = typescript.filter((file) => {
    const { prefix } = roomOf(file)!
    return prefix !== file && prefix !== `${path.dirname(file)}/`
  })
  assert.deepEqual(
    withoutRow.filter((file) => !file.startsWith('web/pages/')),
    [],
  )
})

test('every import is one that the tables of docs/architecture.md allow', () => {
  forbid('not allowed by the tables', (file, to) => {
    if (!isOurs(to)) return false
    const [from, target] = [roomOf(file)!, roomOf(to)!]
    return from !== target && !from.mayImport.includes(target.prefix)
  })
  const forbidden = pythonImports.filter(({ file, to }) => {
    const [from, target] = [roomOf(file)!, roomOf(to)]
    return from !== target && !(target && from.mayImport.includes(target.prefix))
  })
  assert.deepEqual(forbidden, [], 'not allowed by the table of the trainer')
})

const mayCallC = ['engine/llama/', 'server/features/evaluations/graders/python/seal.ts']

test('the contract uses zod alone, lib no package, and only engine/llama and a sandbox’s seal the binding to C', () => {
  forbid('packages', (file, to) => {
    if (isOurs(to) || to.startsWith('node:')) return false
    return (
      (file.startsWith('contract/') && to !== 'zod') ||
      file.startsWith('lib/') ||
      (to === 'koffi' && !mayCallC.some((place) => file.startsWith(place)))
    )
  })
})

const features = rooms.map(({ prefix }) => prefix).filter((prefix) => /^server\/features\/[^/]+\/$/.test(prefix))

test('the engine imports nothing from outside of the folders that bundles, images and clusters take', () => {
  const isTaken = (file: string) => engineFolders.some((folder) => file.startsWith(`${folder}/`))
  forbid('lib/engine-folders.ts', (file, to) => isTaken(file) && isOurs(to) && !isTaken(to))
  const dockerfile = readFileSync(path.join(root, 'deploy/Dockerfile.model'), 'utf8')
  for (const folder of engineFolders) assert.ok(dockerfile.includes(`\nCOPY ${folder} ./${folder}\n`), folder)
})

test('a feature is imported through its index.ts; services.ts creates it, and a backup reads its owned files', () => {
  forbid('features', (file, to) => {
    const feature = features.find((feature) => to.startsWith(feature))
    if (!feature || file.startsWith(feature)) return false
    if (file === 'server/services.ts' && to === `${feature}feature.ts`) return false
    if (file.startsWith('server/maintenance/backup/') && to === `${feature}owned-files.ts`) return false
    return to !== `${feature}index.ts`
  })
})

test('a page of the dashboard imports no other page', () => {
  const pageOf = (file: string) => /^web\/pages\/[^/]+\//.exec(file)?.[0]
  forbid('pages', (file, to) => {
    const [from, target] = [pageOf(file), pageOf(to)]
    return from !== undefined && target !== undefined && from !== target
  })
})

test('a store is used by its own feature alone', () => {
  const featureOf = (file: string) => file.split('/').slice(0, 3).join('/')
  forbid('stores', (file, to) => to.endsWith('/store.ts') && featureOf(file) !== featureOf(to))
})

/** Each path from a node back to itself, one a cycle. */
function cyclesIn(edges: { from: string; to: string }[]): string[] {
  const targets = Map.groupBy(edges, ({ from }) => from)
  const done = new Set<string>()
  const cycles: string[] = []
  const visit = (node: string, trail: string[]) => {
    if (trail.includes(node)) cycles.push([...trail.slice(trail.indexOf(node)), node].join(' → '))
    if (done.has(node) || trail.includes(node)) return
    for (const { to } of targets.get(node) ?? []) visit(to, [...trail, node])
    done.add(node)
  }
  for (const node of targets.keys()) visit(node, [])
  return [...new Set(cycles)]
}

test('a look-up that knows no account says so in its name', () => {
  // Each table of a feature has its accounts' rows, and a look-up by id alone would show them to others.
  const lookUp =
    /^export (?:const|(?:async )?function) (\w+)\b([\s\S]*?)(?=^export |^const |^function |^\/\*\*|(?![\s\S]))/gm
  const lines = typescript
    .filter((file) => /^server\/features\/.*\/store\.ts$/.test(file))
    .flatMap((file) =>
      [...readFileSync(path.join(root, file), 'utf8').matchAll(lookUp)]
        .filter(([, name, body]) => /^(find|by|get)[A-Z]?|ById$/.test(name!) && /where\('id', '=', id\)/.test(body!))
        .filter(([, name, body]) => !name!.endsWith('Unscoped') && !/account_id|_id: string, id: string/.test(body!))
        .map(([, name]) => `${file}: ${name}`),
    )
  assert.deepEqual(lines, [])
})

test('no file imports itself through others, neither values nor types', () => {
  const edges = imports.filter(({ to }) => isOurs(to)).map(({ file, to }) => ({ from: file, to }))
  assert.deepEqual(cyclesIn(edges), [])
})

test('no rooms import each other, but a folder and the room that it lies in', () => {
  const edges = imports
    .filter(({ to }) => isOurs(to))
    .map(({ file, to }) => ({ from: roomOf(file)!.prefix, to: roomOf(to)!.prefix }))
    .filter(({ from, to }) => !from.startsWith(to))
  assert.deepEqual(cyclesIn(edges), [])
})
