"""The SDK's git module: it runs git in the sandbox."""

from checks import done, since
from e2b import Sandbox

if since(2, 20):
    with Sandbox.create(timeout=300) as sandbox:
        git, path = sandbox.git, "/home/user/project"
        git.configure_user("A Name", "name@example.com")
        git.init(path, initial_branch="main")
        sandbox.files.write(f"{path}/a.txt", "one")
        assert [status.name for status in git.status(path).file_status] == ["a.txt"]
        git.add(path)
        git.commit(path, "first")
        git.create_branch(path, "topic")
        sandbox.files.write(f"{path}/a.txt", "two")
        git.add(path, files=["a.txt"])
        git.commit(path, "second", author_name="B", author_email="b@example.com")
        assert sorted(git.branches(path).branches) == ["main", "topic"]
        git.checkout_branch(path, "main")
        assert sandbox.files.read(f"{path}/a.txt") == "one"
        git.delete_branch(path, "topic", force=True)
        git.set_config("pull.rebase", "true")
        assert git.get_config("pull.rebase") == "true"
        git.init("/home/user/bare.git", bare=True, initial_branch="main")
        git.remote_add(path, "origin", "/home/user/bare.git")
        assert git.remote_get(path, "origin") == "/home/user/bare.git"
        git.push(path, remote="origin", branch="main")
        git.clone("/home/user/bare.git", path="/home/user/copy")
        assert sandbox.files.read("/home/user/copy/a.txt") == "one"
        git.pull("/home/user/copy")
        sandbox.files.write(f"{path}/a.txt", "three")
        git.restore(path, ["a.txt"])
        assert sandbox.files.read(f"{path}/a.txt") == "one"
        git.reset(path, mode="hard")
        assert git.status(path).is_clean
        git.dangerously_authenticate("me", "a-token", host="git.example.com")
        assert "git.example.com" in sandbox.files.read("/home/user/.git-credentials")
done()
