// The names of the contract's schemas and operations: of the API's description, and of the client library's types.
import { globSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import type { Route } from '../../contract/route.ts'
import { root } from '../../lib/root.ts'

/** Names that would hide a global of JavaScript. */
const renamed: Record<string, string> = { File: 'FileObject', Response: 'ResponseObject' }

const pascal = (words: string[]) => words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('')

async function exportsOf(): Promise<{ file: string; name: string; value: unknown }[]> {
  const files = globSync('contract/*.ts', { cwd: root }).sort()
  const modules = await Promise.all(files.map((file) => import(path.join(root, file)) as Promise<object>))
  return modules.flatMap((module, index) =>
    Object.entries(module).map(([name, value]) => ({ file: path.basename(files[index]!, '.ts'), name, value })),
  )
}

/** The operation of each route: the name under which the contract exports it, such as `createJob`. */
export const operationNames = async (): Promise<Map<unknown, string>> =>
  new Map((await exportsOf()).map(({ name, value }) => [value, name]))

/** Every schema that a file of the contract exports, by its name; of two with one name, the second also by its file's. */
export async function schemaNames(): Promise<Map<z.ZodType, string>> {
  const found = new Map<z.ZodType, string>()
  const taken = new Set<string>()
  for (const { file, name, value } of await exportsOf())
    if (/^[A-Z]/.test(name) && value instanceof z.ZodType && !found.has(value)) {
      const own = renamed[name] ?? name
      const free = taken.has(own) ? pascal([...file.split('-'), own]) : own
      taken.add(free)
      found.set(value, free)
    }
  return found
}

/** The body of a route's requests; undefined where it may be left out and has no fields. */
export const bodyOf = ({ body }: Route): z.ZodType | undefined =>
  body?.safeParse(undefined).success && isEmpty(body) ? undefined : body

function isEmpty(body: z.ZodType): boolean {
  type Shape = { anyOf?: Shape[]; properties?: object }
  const { anyOf = [], properties } = z.toJSONSchema(body, { io: 'input', unrepresentable: 'any' }) as Shape
  return Object.keys(properties ?? anyOf.find((each) => each.properties)?.properties ?? {}).length === 0
}
