import { globSync } from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Route } from '../../contract/route.ts'
import { root } from '../../lib/root.ts'

/** Every route of the contract. */
export async function contractRoutes(): Promise<Route[]> {
  const files = globSync('contract/*.ts', { cwd: root })
  const modules = await Promise.all(files.map((file) => import(pathToFileURL(path.join(root, file)).href)))
  return modules
    .flatMap((module) => Object.values(module))
    .filter(
      (value): value is Route => typeof value === 'object' && value !== null && 'path' in value && 'scope' in value,
    )
}
