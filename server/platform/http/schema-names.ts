// The names of the contract's schemas and operations: of the API's description, and of the client library's types.
import { globSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import type { Route } from '../../../contract/route.ts'
import { root } from '../../../lib/root.ts'

/** Names that would hide a global of JavaScript. */
const renamed: Record<string, string> = { File: 'FileObject', Response: 'ResponseObject' }

const pascal = (words: string[]) => words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('')

interface ContractNames {
  /** Every schema that a file of the contract exports; of two with one name, the second has its file's before it. */
  schemas: Map<z.core.$ZodType, string>
  /** The operation of each route: the name under which the contract exports it, such as `createJob`. */
  operations: Map<unknown, string>
}

export async function contractNames(): Promise<ContractNames> {
  const schemas = new Map<z.core.$ZodType, string>()
  const operations = new Map<unknown, string>()
  const taken = new Set<string>()
  for (const file of globSync('contract/*.ts', { cwd: root }).sort())
    for (const [name, value] of Object.entries((await import(path.join(root, file))) as Record<string, unknown>)) {
      if (!(value instanceof z.ZodType)) operations.set(value, name)
      else if (/^[A-Z]/.test(name) && !schemas.has(value)) {
        const exported = renamed[name] ?? name
        const free = taken.has(exported) ? pascal([...path.basename(file, '.ts').split('-'), exported]) : exported
        taken.add(free)
        schemas.set(value, free)
      }
    }
  return { schemas, operations }
}

/** The body of a route's requests; undefined where it may be left out and has no fields. */
export const bodyOf = ({ body }: Route): z.core.$ZodType | undefined =>
  body && z.safeParse(body, undefined).success && isEmpty(body) ? undefined : body

function isEmpty(body: z.core.$ZodType): boolean {
  type Shape = { anyOf?: Shape[]; properties?: object }
  const { anyOf = [], properties } = z.toJSONSchema(body, { io: 'input', unrepresentable: 'any' }) as Shape
  return Object.keys(properties ?? anyOf.find((shape) => shape.properties)?.properties ?? {}).length === 0
}
