import type { Kysely } from 'kysely'

/** What the rows of a model's training have in common; null of earlier models and of imported ones. */
export async function up({ schema }: Kysely<unknown>): Promise<void> {
  await schema.alterTable('models').addColumn('trained_with_json', 'text').execute()
}
