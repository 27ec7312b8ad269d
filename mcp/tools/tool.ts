// What a tool is, and what it works with.
import type { ToolAnnotations } from '@modelcontextprotocol/sdk/types.js'
import type { z } from 'zod'
import type { Profile, Tunery } from '../../sdk/index.ts'
import type { Confirm } from '../confirm.ts'

/** A permission of an API key. */
export type Scope = NonNullable<Profile['key']>['scopes'][number]

/** What one call of a tool works with. */
export interface ToolContext {
  tunery: Tunery
  /** Aborts when the client cancels the call or goes away. */
  signal: AbortSignal
  /**
   * Tells the client how far the call is; `share` is from 0 to 1. Nothing happens where the client did not ask for it.
   */
  progress(message: string, share?: number): void
  /** Asks for the agreement to a call that costs. */
  confirm: Confirm
  /** Tokens of chats that may still be spent in this session before the user is asked. */
  chatBudget: { tokens: number }
  /** Reads a file of this machine. Undefined where the client may be on another. */
  readFile?: ((file: string) => Promise<File>) | undefined
}

export interface ToolResult<Data> {
  /** Whether the call did not do what it is for, though nothing is broken. */
  isError?: boolean
  /** A sentence or two on what came of it, without text of users or models. */
  summary: string
  /** Fields that the output schema does not have are left out. */
  data: Data
}

export interface Tool {
  name: string
  title: string
  description: string
  /** The tool is listed for keys that have all of these. The service decides whether a call is allowed. */
  scopes: Scope[]
  input: z.ZodObject
  output: z.ZodObject
  annotations: ToolAnnotations
  run(args: unknown, context: ToolContext): Promise<ToolResult<unknown>>
}

interface Definition<Input extends z.ZodObject, Output extends z.ZodObject> extends Omit<Tool, 'run'> {
  input: Input
  output: Output
  run(args: z.output<Input>, context: ToolContext): Promise<ToolResult<z.input<Output>>>
}

export const defineTool = <Input extends z.ZodObject, Output extends z.ZodObject>(
  tool: Definition<Input, Output>,
): Tool => tool as unknown as Tool

/** Reads, changes nothing. */
export const reads: ToolAnnotations = { readOnlyHint: true, openWorldHint: false }
/** Makes something new; doing it twice makes two. */
export const creates: ToolAnnotations = {
  readOnlyHint: false,
  destructiveHint: false,
  idempotentHint: false,
  openWorldHint: false,
}
/** Changes the state of something; doing it twice is as doing it once. */
export const changes: ToolAnnotations = { ...creates, idempotentHint: true }
/** Ends or replaces something. */
export const destroys: ToolAnnotations = { ...changes, destructiveHint: true }
