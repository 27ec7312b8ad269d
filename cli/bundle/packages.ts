// The packages of a bundle: what the engine imports, in the versions of this checkout's lockfile, and its library as
// npm packages of their own.
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

/** The rooms that the engine is made of. */
export const rooms = ['contract', 'lib', 'engine'] as const

interface Locked {
  version: string
  dev?: boolean
  dependencies?: Record<string, string>
  optionalDependencies?: Record<string, string>
  peerDependencies?: Record<string, string>
}
interface Pin {
  name: string
  version: string
  integrity: string
}

const readJson = (file: string) => JSON.parse(readFileSync(path.join(root, file), 'utf8'))

/** A package.json and a package-lock.json with which `npm ci` brings what the engine runs on, checked by hash. */
export function packagesOfEngine(gpu: 'none' | 'cuda') {
  const { packages: locked } = readJson('package-lock.json') as { packages: Record<string, Locked> }
  const { version, license } = readJson('package.json')
  const pins = readJson('scripts/setup/pins.json') as Record<string, Record<string, Pin>>
  const dependencies = Object.fromEntries(imported().map((name) => [name, locked[`node_modules/${name}`]!.version]))
  const libraries = Object.entries(gpu === 'cuda' ? pins.engine_cuda! : pins.engine!)
  const top = {
    name: 'tunery-bundle',
    version,
    license,
    engines: { node: '>=24' },
    dependencies,
    // Optional, as npm leaves out those of other platforms without a word.
    optionalDependencies: Object.fromEntries(libraries.map(([, pin]) => [pin.name, pin.version])),
  }
  const packages: Record<string, unknown> = { '': top, ...closure(locked, Object.keys(dependencies)) }
  for (const [platform, { name, version, integrity }] of libraries) {
    const [os, cpu] = platform.split('-')
    packages[`node_modules/${name}`] = {
      version,
      integrity,
      cpu: [cpu],
      os: [os],
      libc: ['glibc'],
      license: 'MIT',
      optional: true,
    }
  }
  return {
    manifest: { ...top, private: true, type: 'module' },
    lockfile: { name: top.name, version, lockfileVersion: 3, requires: true, packages: inOrder(packages) },
  }
}

/** The packages that the engine's files name. */
function imported(): string[] {
  const names = new Set<string>()
  for (const file of globSync(`{${rooms.join()}}/**/*.ts`, { cwd: root }))
    for (const [, name] of readFileSync(path.join(root, file), 'utf8').matchAll(
      /(?:from|import\(|require\.resolve\()\s*'([^'.][^']*)'/g,
    ))
      if (!name!.startsWith('node:'))
        names.add(
          name!
            .split('/')
            .slice(0, name!.startsWith('@') ? 2 : 1)
            .join('/'),
        )
  return [...names].sort()
}

/** The entries of these packages and of all that they need, at the places that the lockfile gives them. */
function closure(locked: Record<string, Locked>, names: string[]): Record<string, Locked> {
  const found: Record<string, Locked> = {}
  const visit = (name: string, from: string): void => {
    const at = place(locked, name, from)
    // Only what is optional may be missing from a lockfile.
    if (at === undefined || found[at]) return
    const { dev: _, ...entry } = locked[at]!
    found[at] = entry
    for (const each of Object.keys({ ...entry.dependencies, ...entry.optionalDependencies, ...entry.peerDependencies }))
      visit(each, at)
  }
  for (const name of names) visit(name, '')
  return found
}

/** Where a package looked for from `from` is found, as node looks: in its own folder, then in those around it. */
function place(locked: Record<string, Locked>, name: string, from: string): string | undefined {
  for (let folder = from; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf('node_modules/') - 1))) {
    const at = path.posix.join(folder, 'node_modules', name)
    if (locked[at]) return at
    if (folder === '') return undefined
  }
}

const inOrder = (entries: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(entries).sort(([one], [other]) => (one < other ? -1 : 1)))
