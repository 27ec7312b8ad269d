// package.json and lockfile of a bundle: the packages that the engine imports, in the versions of this checkout's
// lockfile, and the engine's native library as npm packages.
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { engineSources } from '../../../lib/engine-folders.ts'
import { root } from '../../../lib/root.ts'

interface LockedPackage {
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

/** A package.json and package-lock.json with which `npm ci` installs the engine's packages, verified by hash. */
export function enginePackages(gpu: 'none' | 'cuda') {
  const { packages: locked } = readJson('package-lock.json') as { packages: Record<string, LockedPackage> }
  const { version, license } = readJson('package.json')
  const pins = readJson('scripts/setup/pins.json') as Record<string, Record<string, Pin>>
  const dependencies = Object.fromEntries(
    importedPackages().map((name) => [name, locked[`node_modules/${name}`]!.version]),
  )
  const libraries = Object.entries(gpu === 'cuda' ? pins.engine_cuda! : pins.engine!)
  const top = {
    name: 'tunery-bundle',
    version,
    license,
    engines: { node: '>=24' },
    dependencies,
    // Optional: npm then skips those of other platforms.
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
    lockfile: { name: top.name, version, lockfileVersion: 3, requires: true, packages: sortKeys(packages) },
  }
}

/** The npm packages that the engine's files import. */
function importedPackages(): string[] {
  const names = new Set<string>()
  for (const file of globSync(engineSources, { cwd: root }))
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

/** The lockfile's entries of these packages and their dependencies. */
function closure(locked: Record<string, LockedPackage>, names: string[]): Record<string, LockedPackage> {
  const packages: Record<string, LockedPackage> = {}
  const visit = (name: string, from: string): void => {
    const at = resolvePackage(locked, name, from)
    // Only optional packages may be missing from a lockfile.
    if (at === undefined || packages[at]) return
    const { dev: _, ...entry } = locked[at]!
    packages[at] = entry
    for (const dependency of Object.keys({
      ...entry.dependencies,
      ...entry.optionalDependencies,
      ...entry.peerDependencies,
    }))
      visit(dependency, at)
  }
  for (const name of names) visit(name, '')
  return packages
}

/** Resolves a package from the folder `from` as Node does: in its node_modules, then in those of its parents. */
function resolvePackage(locked: Record<string, LockedPackage>, name: string, from: string): string | undefined {
  for (let folder = from; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf('node_modules/') - 1))) {
    const at = path.posix.join(folder, 'node_modules', name)
    if (locked[at]) return at
    if (folder === '') return undefined
  }
}

const sortKeys = (entries: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(entries).sort(([one], [other]) => (one < other ? -1 : 1)))
