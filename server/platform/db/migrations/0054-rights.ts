import { type Kysely, sql } from 'kysely'

/**
 * When a provider proved a member's email, the email that it verified, and the key that made an invitation. The audit
 * log knows who signed in by a provider, removed members too, and which keys made the open invitations. It does not say
 * which email that was: of a member who was changed since, it proves nothing.
 */
export async function up(db: Kysely<unknown>): Promise<void> {
  const { schema } = db
  await schema.alterTable('users').addColumn('email_accepted_at', 'bigint').execute()
  await sql`update users set email_accepted_at =
    (select max(bound.created_at) from audit as bound
      where bound.account_id = users.account_id and bound.target = users.id and bound.action = 'identity.bound'
        and not exists (select 1 from audit as changed
          where changed.account_id = users.account_id and changed.target = users.id
            and changed.action = 'member.changed' and changed.seq > bound.seq))
    where email is not null`.execute(db)
  await schema.alterTable('oidc_identities').addColumn('email', 'text').execute()
  await schema.createIndex('oidc_identities_user').on('oidc_identities').column('user_id').execute()
  await schema.alterTable('sign_in_tokens').addColumn('key_id', 'text').execute()
  await sql`update sign_in_tokens set key_id =
    (select key_id from audit where audit.account_id = sign_in_tokens.account_id and audit.target = sign_in_tokens.id
      and audit.action = 'invitation.created' and audit.kind = 'key')
    where kind = 'invitation'`.execute(db)
}
