import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { tunery } from '../../lib/api.ts'
import { safeNext } from '../../lib/secret.ts'
import { chooseAccount } from '../../lib/sign-in.ts'
import { Centered } from '../../ui/brand.tsx'
import { Button, TextLink } from '../../ui/button.tsx'
import { FormError, Loaded, SkeletonLines } from '../../ui/feedback.tsx'

/** After a sign-in at the provider, where the email alone does not say which account is meant: the person does. */
export default function ChooseAccountPage() {
  const navigate = useNavigate()
  const choices = useQuery({
    queryKey: ['account-choices'],
    queryFn: ({ signal }) => tunery.signIn.accounts({ signal }),
    retry: false,
    gcTime: 0,
  })
  const choose = useMutation({
    mutationFn: chooseAccount,
    onSuccess: (next) => navigate({ href: safeNext(next), replace: true }),
  })
  return (
    <Centered title="Choose an account" footer={<TextLink to="/sign-in">Sign in in another way</TextLink>}>
      <Loaded query={choices} skeleton={<SkeletonLines lines={3} />}>
        {({ email, items }) => (
          <>
            <p>
              <strong>{email}</strong> was entered in these accounts. Choose one that you know: you sign in there from
              now on, and its admins see what you do in it.
            </p>
            <ul className="grid gap-2">
              {items.map(({ user_id, name, role, account }) => (
                <li key={user_id ?? 'new'} className="grid">
                  <Button
                    busy={choose.isPending && choose.variables === user_id}
                    disabled={choose.isPending && choose.variables !== user_id}
                    onClick={() => choose.mutate(user_id)}
                  >
                    {account.name}, as {user_id === null ? 'a new member' : name} ({role})
                  </Button>
                </li>
              ))}
            </ul>
            <FormError error={choose.error} />
          </>
        )}
      </Loaded>
    </Centered>
  )
}
