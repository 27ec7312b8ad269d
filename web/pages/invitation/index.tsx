import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { TuneryError } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { useSecretOfLink } from '../../lib/secret.ts'
import { acceptInvitation, type Invitation } from '../../lib/sign-in.ts'
import { Centered } from '../../ui/brand.tsx'
import { TextLink } from '../../ui/button.tsx'
import { FormError, Loaded, Notice, SkeletonLines } from '../../ui/feedback.tsx'
import { Form, SubmitButton } from '../../ui/field.tsx'
import { Facts } from '../../ui/layout.tsx'
import { missingIn, NewPassword } from '../../ui/new-password.tsx'

/** `/invitation#TOKEN`: shows what it is for, and begins the new member's first session. */
export default function InvitationPage() {
  const token = useSecretOfLink()
  const invitation = useQuery({
    queryKey: ['invitation', token],
    queryFn: () => tunery.signIn.lookAtInvitation({ token: token! }),
    enabled: token !== undefined,
    retry: false,
    gcTime: 0,
  })
  return (
    <Centered title="Invitation" footer={<TextLink to="/sign-in">I have an account: sign in</TextLink>}>
      {invitation.error instanceof TuneryError ? (
        <FormError error={invitation.error} title="The invitation cannot be accepted" />
      ) : token === undefined ? (
        <Notice tone="warn" title="The link is not complete">
          Open the whole link that you were given, with all that stands behind the #.
        </Notice>
      ) : (
        <Loaded query={invitation} skeleton={<SkeletonLines lines={4} />}>
          {(invitation) => <Accept token={token} invitation={invitation} />}
        </Loaded>
      )}
    </Centered>
  )
}

function Accept({ token, invitation }: { token: string; invitation: Invitation }) {
  const navigate = useNavigate()
  const [password, setPassword] = useState('')
  const accept = useMutation({
    mutationFn: () => acceptInvitation(token, invitation.email ? password : undefined),
    onSuccess: ({ has_password, has_passkey }) =>
      navigate({ to: has_password || has_passkey ? '/' : '/welcome', replace: true }),
  })
  return (
    <>
      <p>
        {invitation.invited_by ?? 'An admin'} invites you to <strong>{invitation.account.name}</strong>.
      </p>
      <Facts
        facts={[
          ['Name', invitation.name],
          ['Email', invitation.email ?? 'none yet'],
          ['Role', invitation.role],
        ]}
      />
      <Form onSubmit={() => accept.mutate()}>
        {invitation.email && (
          <>
            {/* For password managers: the name that the password belongs to. */}
            <input type="hidden" name="email" autoComplete="username" value={invitation.email} />
            <NewPassword value={password} onChange={setPassword} error={fieldError(accept.error, 'password')} />
          </>
        )}
        <FormError error={accept.error} fields={['password']} />
        <SubmitButton busy={accept.isPending} missing={invitation.email !== null && missingIn(password)}>
          Join
        </SubmitButton>
      </Form>
    </>
  )
}
