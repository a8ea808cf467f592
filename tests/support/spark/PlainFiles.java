package tests;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's files on a local disk. Java itself does what Hadoop starts `chmod` and `readlink` for. */
public class PlainFiles extends LocalFileSystem {
    public PlainFiles() {
        super(new RawPlainFiles());
    }
}

class RawPlainFiles extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.getStickyBit()) {
            super.setPermission(path, permission);
        } else {
            Files.setPosixFilePermissions(
                pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
        }
    }

    public FileStatus getFileLinkStatus(Path path) throws IOException {
        if (Files.isSymbolicLink(pathToFile(path).toPath())) {
            return super.getFileLinkStatus(path);
        }
        return getFileStatus(path);
    }
}

/** The same for checkpoints, which are written by Hadoop's other interface. */
class PlainContext extends ChecksumFs {
    public PlainContext(URI uri, Configuration settings) throws IOException, URISyntaxException {
        super(new RawPlainContext(settings));
    }
}

class RawPlainContext extends DelegateToFileSystem {
    RawPlainContext(Configuration settings) throws IOException, URISyntaxException {
        super(FsConstants.LOCAL_FS_URI, new RawPlainFiles(), settings, FsConstants.LOCAL_FS_URI.getScheme(), false);
    }

    public boolean isValidName(String name) {
        return true;
    }
}
